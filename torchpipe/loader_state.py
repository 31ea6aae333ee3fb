"""The state of a loader: flat, versioned, checked before anything of it is used.

Imports ``errors``, ``graph`` and ``state``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.graph.fingerprint import digest
from torchpipe.state import Cursor, decode, encode

__all__ = ["STATE_KEYS", "STATE_VERSION", "LoaderState"]

STATE_VERSION = 1
STATE_KEYS = ("version", "fingerprint", "seed", "epoch", "delivered", "num_shards", "rank", "world_size", "payload")


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """A position in a run: ``delivered`` items into ``epoch`` of ``seed``; ``position`` is the stream's own state.

    ``finished`` says for certain that the epoch has no more items; without it, it may have none all the same.
    """

    seed: int
    epoch: int
    delivered: int
    num_shards: int
    rank: int = 0
    world_size: int = 1
    position: dict[str, Any] | None
    finished: bool = False

    def to_dict(self, graph_text: str) -> dict[str, Any]:
        """The flat dict that users keep; its keys never depend on the position."""
        return {
            "version": STATE_VERSION,
            "fingerprint": digest(graph_text),
            "seed": self.seed,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "num_shards": self.num_shards,
            "rank": self.rank,
            "world_size": self.world_size,
            "payload": encode({"graph": graph_text, "position": self.position, "finished": self.finished}),
        }

    @classmethod
    def from_dict(
        cls,
        state: Any,
        graph_text: str,
        num_shards: int | None,
        *,
        rank: int = 0,
        world_size: int = 1,
        allow_pickle: bool = False,
    ) -> LoaderState:
        """Read a flat dict that must fit the graph, the rank and, unless None, ``num_shards``.

        Raises: StateMismatchError, showing both sides; StateError for what is no loader state.
        """
        if not isinstance(state, Mapping):
            raise StateError(
                f"a loader state is the dict from state_dict(), got {type(state).__name__}: {repr(state)[:40]}. Read a "
                "saved file back with what wrote it (torch.load, say) and pass the loader's dict from it"
            )
        missing = [key for key in STATE_KEYS if key not in state]
        if missing:
            raise StateError(
                f"not a torchpipe loader state: {', '.join(missing)} missing, it has "
                f"{', '.join(map(str, state))[:200] or 'nothing'}. Pass the dict from state_dict() as it was"
            )
        if state["version"] != STATE_VERSION:
            raise StateMismatchError(
                f"the state has version {state['version']!r}, this torchpipe reads version {STATE_VERSION}: "
                "load it with the version of torchpipe that wrote it"
            )
        for key in ("seed", "epoch", "delivered", "num_shards", "rank", "world_size"):
            if type(state[key]) is not int or state[key] < (key in ("num_shards", "world_size")):
                raise _damaged(f"{key} is {state[key]!r}")
        if not isinstance(state["payload"], bytes | bytearray | memoryview):
            raise _damaged(f"payload is {repr(state['payload'])[:40]}, not bytes")
        payload = decode(bytes(state["payload"]), allow_pickle=allow_pickle)
        if not isinstance(payload, dict) or not isinstance(payload.get("graph"), str) or "position" not in payload:
            raise _damaged("its payload holds no graph and position")
        if not isinstance(payload["position"], dict | None):
            raise _damaged(f"the position in its payload is {repr(payload['position'])[:40]}")
        if state["fingerprint"] != digest(payload["graph"]):
            raise _damaged(
                f"fingerprint is {state['fingerprint']!r}, but its payload belongs to {digest(payload['graph'])}"
            )
        if payload["graph"] != graph_text:
            raise StateMismatchError(_graph_difference(payload["graph"], graph_text))
        if num_shards is not None and num_shards != state["num_shards"]:
            raise StateMismatchError(
                f"the state was saved with num_shards={state['num_shards']}, this loader has num_shards={num_shards}: "
                "the streams differ. Leave num_shards unset to adopt the state's (num_workers may be anything)"
            )
        if (rank, world_size) != (state["rank"], state["world_size"]):
            raise StateMismatchError(
                f"the state was saved by rank {state['rank']} of {state['world_size']}, this loader is rank {rank} of "
                f"{world_size}: every rank has its own part of the stream. Load on each rank the state that the same "
                "rank has saved, in a run of as many ranks"
            )
        _check_snapshots(payload["position"], allow_pickle)
        return cls(
            seed=state["seed"],
            epoch=state["epoch"],
            delivered=state["delivered"],
            num_shards=state["num_shards"],
            rank=state["rank"],
            world_size=state["world_size"],
            position=payload["position"],
            finished=payload.get("finished") is True,
        )


def _damaged(what: str) -> StateError:
    return StateError(f"the state is damaged: {what}. Use an older checkpoint")


def _graph_difference(saved: str, ours: str) -> str:
    theirs, mine = saved.splitlines(), ours.splitlines()
    length = max(len(theirs), len(mine))
    theirs += ["(no node)"] * (length - len(theirs))
    mine += ["(no node)"] * (length - len(mine))
    where = next(index for index in range(length) if theirs[index] != mine[index])
    return (
        f"the state belongs to another graph: fingerprint {digest(saved)} was saved, this graph has {digest(ours)}. "
        f"The first node that differs:\n  saved: {theirs[where]}\n  here:  {mine[where]}\n"
        "Load it into the graph that saved it, or begin a new run"
    )


def _check_snapshots(value: Any, allow_pickle: bool) -> None:
    """Open every snapshot inside the state now, so that damage or unsafe items are found before anything starts."""
    if isinstance(value, dict):
        try:
            cursor = Cursor.from_state(value)
        except (TypeError, ValueError):
            raise _damaged("it holds a malformed cursor") from None
        if cursor is not None and cursor.snapshot is not None:
            _check_snapshots(decode(cursor.snapshot, allow_pickle=allow_pickle), allow_pickle)
        for item in value.values():
            _check_snapshots(item, allow_pickle)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_snapshots(item, allow_pickle)
