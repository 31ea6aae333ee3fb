"""Each shard's state under a name of its own, saved by the rank that hosts it; and a rank's state, of its shards'.

Runs in the user's process; asks nobody. With ``total_shards`` a rank needs nothing but the states of the shards that it
hosts, whoever saved them: no state is gathered, and none is read twice. Each is the state of a rank with one shard, as
``torchpipe.state.merge`` takes them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state.codec import decode, encode
from torchpipe.state.flat import FlatState, shown
from torchpipe.state.ranks import deal, delivered_position, joined_position, with_rotations
from torchpipe.state.rotation import Rotation

__all__ = ["HostedShards", "shard_states"]


def _name(shard: int, total: int) -> str:
    return f"shard {shard} of {total}"


def shard_states(state: Mapping[str, Any], step: int) -> dict[str, bytes]:
    """The state of a rank, apart: that of each shard, as bytes, under its number among all shards.

    ``step``: how many items this rank has had since the run began, through all resumes; the same on all ranks.

    Raises: StateMismatchError or StateError where a node after the shards has a position of its own.
    """
    whole = FlatState.read(state, keep_opaque=True)
    rank, world, shards = (whole.numbers[name] for name in ("rank", "world_size", "num_shards"))
    positions: list[dict[str, Any] | None] = [None] * shards
    counts = [0] * shards
    if whole.position is not None:
        plain = with_rotations(delivered_position(whole.position), lambda part: Rotation.from_state(part, shards))
        parts, counts = deal(plain, shards, shards)
        positions = [*parts]
    saved = {"ranks": world, "step": step}
    kept = {}
    for index, position in enumerate(positions):
        shard, total = rank + world * index, world * shards
        numbers = {"rank": shard, "world_size": total, "num_shards": 1, "delivered": counts[index]}
        part = replace(whole, numbers=whole.numbers | numbers, position=position, common=True)
        kept[_name(shard, total)] = encode({"state": part.to_dict(), "saved": saved})
    return kept


@dataclass(frozen=True, kw_only=True)
class HostedShards:
    """The states of the shards that rank ``rank`` of ``ranks`` hosts, saved after ``step`` items of each rank.
    ``counts``: for each branch of the graph, how many items they have given.
    """

    rank: int
    ranks: int
    whole: FlatState
    position: dict[str, Any] | None
    counts: tuple[int, ...]
    step: int

    @classmethod
    def read(cls, kept: Mapping[str, Any], rank: int, ranks: int, total: int) -> HostedShards:
        """Raises: StateMismatchError for states that are missing or do not belong together, StateError for damage."""
        names = [_name(shard, total) for shard in range(rank, total, ranks)]
        missing = [name for name in names if name not in kept]
        if missing:
            raise StateMismatchError(
                f"rank {rank} of {ranks} needs the state of {', '.join(missing[:8])}, and the checkpoint has "
                f"{', '.join(map(str, [*kept][:8])) or 'none'}: each rank saves the shards that it hosts. Save on all "
                "ranks, through torch.distributed.checkpoint, and load with the total_shards of the run that saved"
            )
        opened = [_opened(name, kept[name]) for name in names]
        states = [FlatState.read(item["state"], keep_opaque=True) for item in opened]
        begun = [state for state in states if state.position is not None]
        saved = [item["saved"] for item in opened]
        same: dict[str, set[Any]] = {
            "graph": {state.graph for state in states},
            "seed": {state.numbers["seed"] for state in begun},
            "epoch": {state.numbers["epoch"] for state in states},
            "number of ranks": {item["ranks"] for item in saved},
            "step": {item["step"] for item in saved},
        }
        for what, values in same.items():
            if len(values) > 1:
                summaries = "" if what == "graph" else f" ({', '.join(map(shown, sorted(values)))})"
                raise _mixed(f"the {what} of shards differs{summaries}")
        position = joined_position([state.position for state in states], 1)
        counts: list[int] = []
        if position is not None:

            def note(part: dict[str, Any]) -> Rotation:
                rotation = Rotation.from_state(part, len(names))
                counts.append(sum(rotation.counts))
                return rotation

            with_rotations(position, note)
        return cls(
            rank=rank,
            ranks=ranks,
            whole=next(iter(begun), states[0]),
            position=position,
            counts=tuple(counts),
            step=saved[0]["step"],
        )

    def summary(self) -> dict[str, Any]:
        """The counts and the step, which other ranks need, to end together."""
        return {"counts": list(self.counts), "step": self.step}

    def state(self, summaries: list[dict[str, Any]], agreed: Callable[[list[int]], int]) -> dict[str, Any]:
        """This rank's state. ``summaries``: that of each rank; of ranks that do not talk, this one's alone.

        Raises: StateMismatchError if other ranks have read states of another save.
        """
        steps = {item["step"] for item in summaries}
        if len(steps) > 1:
            raise _mixed(f"the step of ranks differs ({', '.join(map(str, sorted(steps)))})")
        mine = sum(self.counts[:1])
        each = [sum(item["counts"][:1]) for item in summaries]
        delivered = mine if len(summaries) < self.ranks else agreed(each)
        position = self.position
        if position is not None:
            branches = iter(range(len(self.counts)))

            def with_items_behind(part: dict[str, Any]) -> Rotation:
                branch = next(branches)
                most = max(sum(item["counts"][branch : branch + 1]) for item in summaries)
                return replace(Rotation.from_state(part, len(part["shards"])), items_behind=most - self.counts[branch])

            position = with_rotations(position, with_items_behind)
        total = self.whole.numbers["world_size"]
        numbers = {
            "rank": self.rank,
            "world_size": self.ranks,
            "num_shards": total // self.ranks,
            "delivered": delivered,
        }
        return replace(self.whole, numbers=self.whole.numbers | numbers, position=position, common=True).to_dict()


def _opened(name: str, value: Any) -> dict[str, Any]:
    opened: Any = decode(bytes(value), keep_opaque=True) if isinstance(value, bytes | bytearray | memoryview) else {}
    saved = opened.get("saved") if isinstance(opened, dict) else None
    if not isinstance(saved, dict) or not all(type(saved.get(key)) is int for key in ("ranks", "step")):
        raise StateError(f"the state of {name} is damaged: it is {shown(value)}. Use an older checkpoint")
    return opened  # type: ignore[no-any-return]


def _mixed(what: str) -> StateMismatchError:
    return StateMismatchError(
        f"the states of shards do not belong together: {what}. Are keys of two checkpoints mixed, or did ranks save at "
        "different steps? Load a checkpoint that all ranks have saved at the same step; where ranks do not talk "
        "(OrdinalReadingService), let the shards have equally many items, so that epochs end together"
    )
