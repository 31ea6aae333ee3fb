"""One state of all ranks, and a rank's part of it. Runs in the user's process; asks nobody.

A run of w ranks with s shards each has w * s shards: shard j of rank r is number ``r + w * j`` among them. The one
state is that of a single process with so many shards, so it is free of ranks, and any number of them can take it up: of
4 shards on 6 ranks, ranks 0, 2 and 4 host shards 0 and 2, and each has the state of "rank 0 of 2". Within a position,
the merges of shards (``Rotation``) are what can be joined and dealt; what lies over them (a device stage, functions
without state) has no position of its own.

Each shard's state may also be saved under a name of its own, by the rank that hosts it. With ``total_shards`` a rank
needs nothing but the states of the shards that it hosts, whoever saved them: no state is gathered, and none is read
twice. Each is the state of a rank with one shard, as ``torchpipe.state.merge`` takes them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.state.codec import decode, encode
from torchpipe.state.cursor import Cursor, Rotation
from torchpipe.state.flat import FlatState, damaged, shown

__all__ = [
    "HostedShards",
    "deal",
    "delivered_position",
    "is_of_agreement",
    "merge",
    "shard_states",
]

_SAME = ("fingerprint", "seed", "epoch", "num_shards", "world_size")
_BESIDE = {"shapes"}  # what a device stage has noted of the first batch
_MOST_LEVELS = 150  # nodes one behind the other: a graph has no more

Position = dict[str, Any]


def merge(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states that the ranks of a run have saved, each its own, into the one state of all of them.

    What ``state_dict(states="all")`` gives, made of files. It loads in a single process, under any number of ranks that
    divides the number of all shards, and under any other with ``total_shards`` of the reading service. The ranks may
    stand at different positions of an epoch: each shard goes on where it stood, those that are behind first. Nothing
    that is in the states is run.

    Of ranks that host the same shards, one state will do; several must be equally far.

    Raises: StateMismatchError for ranks that are missing, for states of different runs, graphs, epochs or numbers of
    shards, and for those of a graph that divides ranks apart from shards; StateError for what is no state, and where a
    node after the shards holds items of its own.
    """
    given = list(states)
    if not given:
        raise StateMismatchError("no states to merge: give those of all ranks, each as its state_dict() was")
    if all(isinstance(state, Mapping) and "dataset" in state for state in given):
        raise StateMismatchError(
            "these are states of a DataLoader, whose position is a count that all ranks have in common: load any one "
            "of them on every rank"
        )
    read = [FlatState.read(state, keep_opaque=True) for state in given]
    _check_together(given)
    world = given[0]["world_size"]
    if world == 1 and not is_of_agreement(read[0].position):
        return dict(given[0])
    parts = [part for _, part in sorted({part.numbers["rank"]: part for part in read}.items())]
    if not all(part.common for part in parts):
        raise StateMismatchError(
            "these states cannot be merged: the graph divides among ranks apart from shards (SHARDING_PRIORITIES, "
            "sharding_round_robin_dispatch), so its stream depends on the number of ranks. Load each on the rank that "
            "saved it, or begin a run with total_shards=..., which divides among all shards alike"
        )
    shards = parts[0].numbers["num_shards"]
    position = _joined_position([part.position for part in parts], shards)
    delivered = sum(part.numbers["delivered"] - _repeated(part.position) for part in parts)
    if position is not None and Rotation.is_one(position):
        delivered = sum(position["counts"])
    numbers = parts[0].numbers | {"rank": 0, "world_size": 1, "num_shards": world * shards, "delivered": delivered}
    return replace(parts[0], numbers=numbers, position=position, common=True).to_dict()


def _check_together(states: Sequence[Mapping[str, Any]]) -> None:
    """Raises: StateMismatchError unless these are the states of all ranks of one run, at one epoch."""
    for name in _SAME:
        if len({state[name] for state in states}) > 1:
            values = ", ".join(f"rank {state['rank']}: {shown(state[name])}" for state in states)
            raise StateMismatchError(
                f"the states do not belong together: {name} differs ({values}). Merge those that the ranks of one run "
                "have saved in one epoch"
            )
    world = states[0]["world_size"]
    positions: dict[int, set[int]] = {}
    for state in states:
        positions.setdefault(state["rank"], set()).add(state["delivered"])
    for rank, different in positions.items():
        if len(different) > 1:
            raise StateMismatchError(
                f"the shards of rank {rank} of {world} have states after {' and '.join(map(str, sorted(different)))} "
                "items: give the states that all ranks which share them have saved at the same step"
            )
    missing = [str(rank) for rank in range(min(world, 1 << 16)) if rank not in positions]
    if missing:
        raise StateMismatchError(
            f"the state of rank {', '.join(missing[:20])} of {world} is missing: give the states of all ranks, or "
            'save one for all with state_dict(states="all")'
        )


def _joined_position(positions: list[Position | None], shards: int) -> Position | None:
    """The position of all ranks; None if none of them has begun."""
    if all(position is None for position in positions):
        return None
    found: list[list[Rotation] | None] = []
    for rank, position in enumerate(positions):
        try:
            found.append(None if position is None else _rotations(delivered_position(position), shards))
        except StateError as error:
            error.add_note(f"torchpipe: in the state of rank {rank}")
            raise
    template = next(position for position in positions if position is not None)
    merges = next(len(rotations) for rotations in found if rotations is not None)
    begins = [Rotation.begin(shards)] * merges
    parts = [begins if rotations is None else rotations for rotations in found]
    if any(len(part) != merges for part in parts):
        raise damaged("its ranks have different numbers of branches")
    joined = iter([Rotation.joined(branch) for branch in zip(*parts)])
    return _with_rotations(delivered_position(template), lambda _: next(joined))


def is_of_agreement(position: Position | None) -> bool:
    """True if it is the position of a rank that repeats items, until others have ended too."""
    return position is not None and "agreement" in position


def delivered_position(position: Position) -> Position:
    """The position of the items delivered, of a rank that may have repeated one since."""
    if not is_of_agreement(position):
        return position
    after = position.get("after")
    if type(after) is not list or len(after) != 1 or type(after[0]) is not dict:
        raise StateMismatchError(
            "the state was saved by a former torchpipe, which did not say where each shard stood: load it on the rank "
            "that saved it, and save it again"
        )
    return after[0]


def _repeated(position: Position | None) -> int:
    """The number of delivered items that were repeated, so that ranks end together."""
    agreed = (position or {}).get("agreement")
    repeated = agreed.get("repeated", 0) if type(agreed) is dict else 0
    return repeated if type(repeated) is int else 0


def deal(position: Position, shards: int, ranks: int) -> tuple[list[Position], list[int]]:
    """Each rank's part of a position of ``shards`` shards, and how many items it has behind it.

    Raises: StateError for what is none, and where a node after the shards holds items of its own.
    """
    whole = _rotations(position, shards)
    parts_of_ranks = [rotation.for_ranks(ranks) for rotation in whole]
    counts = whole[0].counts
    parts = []
    for rank in range(ranks):
        branches = iter([branch[rank] for branch in parts_of_ranks])
        parts.append(_with_rotations(position, lambda _, branches=branches: next(branches)))  # type: ignore[misc]
    return parts, [sum(counts[rank::ranks]) for rank in range(ranks)]


def _rotations(position: Position, shards: int) -> list[Rotation]:
    found: list[Rotation] = []

    def note(state: Position) -> Rotation:
        found.append(Rotation.from_state(state, shards))
        return found[-1]

    _with_rotations(position, note)
    if not found:
        raise damaged("its position has no shards")
    return found


def _with_rotations(position: Position, change: Callable[[Position], Rotation], depth: int = 0) -> Position:
    """``position`` with other merges of shards in it, and no cursor over them."""
    if depth > _MOST_LEVELS:
        raise damaged("its position is nested too deep")
    beside = {name: position[name] for name in _BESIDE & position.keys()}
    if Rotation.is_one(position):
        return change(position).to_state() | beside
    cursor = Cursor.from_state(position)
    if cursor is not None:
        if cursor.snapshot is None or cursor.skip:
            raise StateError(
                f"the state was taken {cursor.skip} items after a snapshot of what runs after the shards, and does not "
                "say which shards gave these. Load it where it was saved, take an item, and save it again"
            )
        inner = decode(cursor.snapshot, keep_opaque=True)
        if type(inner) is not dict:
            raise damaged("a snapshot in it is no position")
        return _with_rotations(inner, change, depth + 1) | beside
    inputs = position.get("inputs")
    own = position.keys() - {"inputs", *_BESIDE}
    if own or type(inputs) is not list or not all(type(item) is dict for item in inputs):
        raise StateMismatchError(
            f"a node that runs after the shards has a position of its own ({', '.join(sorted(map(shown, own)))}): it "
            "holds or counts what the shards of one rank have given, and that cannot be dealt to others. Move it "
            "before to_device(), where it runs within a shard, or keep the number of ranks, and each rank's own state"
        )
    return {"inputs": [_with_rotations(item, change, depth + 1) for item in inputs], **beside}


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
        plain = _with_rotations(delivered_position(whole.position), lambda part: Rotation.from_state(part, shards))
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
        position = _joined_position([state.position for state in states], 1)
        counts: list[int] = []
        if position is not None:

            def note(part: dict[str, Any]) -> Rotation:
                rotation = Rotation.from_state(part, len(names))
                counts.append(sum(rotation.counts))
                return rotation

            _with_rotations(position, note)
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

            position = _with_rotations(position, with_items_behind)
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
