"""The state of a loader: flat, versioned, checked before anything of it is used."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.execution.epoch import Epoch
from torchpipe.graph.fingerprint import digest
from torchpipe.node.validate import MAX_SHARDS
from torchpipe.state import decode, encode

__all__ = ["STATE_KEYS", "STATE_VERSION", "LoaderState", "damaged", "shown"]

STATE_VERSION = 2
STATE_KEYS = ("version", "fingerprint", "seed", "epoch", "delivered", "num_shards", "rank", "world_size", "payload")
_NUMBERS = ("seed", "epoch", "delivered", "num_shards", "rank", "world_size")
_LARGEST = {"seed": 1 << 4096, "num_shards": MAX_SHARDS}  # of others: 2**62


@dataclass(frozen=True, kw_only=True)
class LoaderState(Epoch):
    """A position in a run: ``delivered`` items into ``epoch`` of ``seed``; ``position`` is the stream's own state.

    ``finished`` says for certain that the epoch has no more items; without it, it may have none all the same.
    """

    delivered: int
    position: dict[str, Any] | None
    finished: bool = False

    def to_dict(self, graph_text: str) -> dict[str, Any]:
        """The flat dict that users keep; its keys never depend on the position.

        The payload has a checksum and repeats the numbers beside it, so that a change of either is found.
        """
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        payload = encode(
            {"graph": graph_text, "numbers": numbers, "position": self.position, "finished": self.finished}
        )
        return {"version": STATE_VERSION, "fingerprint": digest(graph_text), **numbers, "payload": payload}

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
                f"a loader state is the dict from state_dict(), got {type(state).__name__}: {shown(state)}. Read a "
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
                f"the state has version {shown(state['version'])}, this torchpipe reads version {STATE_VERSION}: "
                "load it with the version of torchpipe that wrote it"
            )
        for name in _NUMBERS:
            _check_number(name, state[name])
        payload = _open(state, allow_pickle)
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
        return cls(
            **{name: state[name] for name in _NUMBERS},
            position=payload["position"],
            finished=payload.get("finished") is True,
        )


def _check_number(name: str, value: Any) -> None:
    least, most = int(name in ("num_shards", "world_size")), _LARGEST.get(name, 1 << 62)
    if type(value) is not int:
        raise damaged(f"{name} is {shown(value)}")
    if not least <= value <= most:
        raise damaged(
            f"{name} is {shown(value)}, and can be {least} to {most if most < 1 << 64 else 'thousands of bits'}"
        )


def _open(state: Mapping[str, Any], allow_pickle: bool) -> dict[str, Any]:
    """The payload, once it agrees with what stands beside it."""
    if not isinstance(state["payload"], bytes | bytearray | memoryview):
        raise damaged(f"payload is {shown(state['payload'])}, not bytes")
    payload = decode(bytes(state["payload"]), allow_pickle=allow_pickle)
    if not isinstance(payload, dict) or not isinstance(payload.get("graph"), str) or "position" not in payload:
        raise damaged("its payload holds no graph and position")
    if not isinstance(payload["position"], dict | None):
        raise damaged(f"the position in its payload is {shown(payload['position'])}")
    belongs = digest(payload["graph"])
    if state["fingerprint"] != belongs:
        raise damaged(f"fingerprint is {shown(state['fingerprint'])}, but its payload belongs to {belongs}")
    numbers = payload.get("numbers")
    if not isinstance(numbers, dict) or numbers.keys() != set(_NUMBERS):
        raise damaged("its payload does not repeat the numbers beside it")
    for name in _NUMBERS:
        if type(numbers[name]) is not int or numbers[name] != state[name]:
            _check_number(name, numbers[name])
            raise damaged(f"{name} is {state[name]}, but its payload belongs to {numbers[name]}")
    return payload


def shown(value: Any) -> str:
    """At most 40 characters of any value, of a hostile one as well."""
    try:
        return reprlib.repr(value)[:40]
    except Exception:  # an integer of thousands of digits, an object whose repr raises
        return f"a {type(value).__name__}"


def damaged(what: str) -> StateError:
    """The error for a state that contradicts itself."""
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
