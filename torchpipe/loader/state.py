"""The state of a loader: what it must have in common with the one that it is loaded into, what a rank has of it, its
size.

Runs in the user's process. A state is looked into once for its size, when the first large one is saved.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import LargeStateWarning, RankError, StateError, StateMismatchError
from torchpipe.execution.epoch import Epoch
from torchpipe.graph import plan
from torchpipe.machine import format_bytes
from torchpipe.node.fingerprint import describe_graph, first_argument, first_difference, without_data
from torchpipe.node.identity import WAY_ON, Identity, identity_of_graph
from torchpipe.node.traits import DataPipe, inputs_of, node_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.state import Cursor, decode, encode
from torchpipe.state.flat import MAX_SHARDS, STATE_KEYS, STATE_VERSION, FlatState, digest
from torchpipe.state.ranks import deal, is_of_agreement, merge

__all__ = ["STATE_KEYS", "STATE_VERSION", "GraphIdentity", "LoaderState", "RankLayout", "StateSizes", "state_of_all"]

_MUCH_BYTES = 100_000_000


class StateSizes:
    """``last_bytes``: of the state that was saved last, None before. The first large one is told."""

    def __init__(self) -> None:
        self.last_bytes: int | None = None
        self._warned = False

    def note(self, state: dict[str, Any], graph: DataPipe) -> None:
        payload = state["payload"]
        self.last_bytes = len(payload)
        if self._warned or self.last_bytes < _MUCH_BYTES:
            return
        self._warned = True
        holds = ""
        with suppress(StateError, LookupError, TypeError, ValueError):  # nobody's state is lost for a warning
            name, size = _filled_by(payload, graph)
            if 2 * size > self.last_bytes:
                holds = f": most of it is what {name} holds, {format_bytes(size)} in {state['num_shards']} shards"
        warn_user(
            f"the state has {format_bytes(self.last_bytes)}{holds}. Give nodes that hold items a smaller buffer, or "
            "let them stand before those that make the items larger (what decodes or tokenizes); a shuffle() right "
            "behind a reader of files is in the state by the numbers of its items. loader.stats().state_bytes has the "
            "size of each state",
            LargeStateWarning,
        )


def _filled_by(payload: bytes, graph: DataPipe) -> tuple[str, int]:
    """The node of which all shards' states hold most, and how many bytes. Raises: ValueError, LookupError where that
    cannot be told.
    """
    (cut,) = plan(graph).cuts
    snapshots = _snapshots(decode(payload, keep_opaque=True)["position"])
    sizes: Counter[int] = Counter()  # by the ids of nodes
    names: dict[int, str] = {}
    waiting: list[tuple[Any, DataPipe]] = [(snapshot["iterator"], cut) for snapshot in snapshots]
    while waiting:
        state, node = waiting.pop()
        if (cursor := Cursor.from_state(state)) is not None:
            state = {} if cursor.snapshot is None else decode(cursor.snapshot, keep_opaque=True)
        if not isinstance(state, dict):
            continue
        names[id(node)] = node_name(node)
        sizes[id(node)] += len(encode({key: value for key, value in state.items() if key != "inputs"}))
        waiting += zip(state.get("inputs", ()), inputs_of(node))
    ((most, size),) = sizes.most_common(1)
    return names[most], size


def _snapshots(position: Any) -> Iterator[Any]:
    """The snapshots in the cursors of shards, opened."""
    if isinstance(position, Cursor):
        if position.snapshot is not None:
            yield decode(position.snapshot, keep_opaque=True)
    elif isinstance(position, dict):
        for value in position.values():
            yield from _snapshots(value)
    elif isinstance(position, list):
        for value in position:
            yield from _snapshots(value)


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """The layout of a loader that takes up a state: it has the shards of rank ``rank`` of ``world_size``, and ``turns``
    ranks take turns at their items.

    ``num_shards``: the number that it must have, if that is fixed. ``common``: True if its shards are those of the run,
    whoever hosts them. ``agreed``: the items of the epoch on this rank, after so many items of each rank's shards.
    """

    rank: int = 0
    world_size: int = 1
    turns: int = 1
    num_shards: int | None = None
    common: bool = True
    agreed: Callable[[list[int]], int] = min


@dataclass(frozen=True, kw_only=True)
class GraphIdentity:
    """The identity of a loader's graph, and of the data that it reads."""

    root: DataPipe
    text: str
    data: Identity

    @classmethod
    def of(cls, root: DataPipe) -> GraphIdentity:
        return cls(root=root, text=describe_graph(root), data=identity_of_graph(root))

    def check(self, flat: FlatState, *, of_this_rank: bool, allow_other_data: bool) -> None:
        """Raises: StateMismatchError for the state of another graph, or of other data, unless they are allowed."""
        if flat.graph != self.text:
            same = without_data(flat.graph, self.root) == without_data(self.text, self.root)
            if not (same and allow_other_data):
                where = self.data.difference(flat.data, of_this_rank=of_this_rank) if same else None
                data = "" if not same else f". {WAY_ON}" if where is None else f". {where}. {WAY_ON}"
                raise StateMismatchError(_graph_difference(flat.graph, self.text) + data)
        elif not allow_other_data:
            self.data.check(flat.data, of_this_rank=of_this_rank)


@dataclass(frozen=True, kw_only=True)
class LoaderState(Epoch):
    """A position in a run: ``delivered`` items into ``epoch`` of ``seed``; ``position`` is the stream's own state.

    The rest of the epoch may be empty. ``origin`` names the state of all ranks that it is a part of.
    """

    delivered: int
    position: dict[str, Any] | None
    origin: str = ""

    @classmethod
    def at(cls, epoch: Epoch, delivered: int, position: dict[str, Any] | None) -> LoaderState:
        """The state after ``delivered`` items of ``epoch``."""
        return cls.of(epoch.identity, delivered=delivered, position=position)

    @classmethod
    def of(cls, numbers: dict[str, int], **more: Any) -> LoaderState:
        """``numbers``: those of the epoch, by name."""
        return cls(**(more | numbers))

    def to_dict(self, graph: GraphIdentity, *, common: bool = True, turns: int = 1) -> dict[str, Any]:
        """The flat dict that users keep; its keys never depend on the position. So many ranks take ``turns`` at the
        shards' items: the dict counts those of all.
        """
        numbers, data = self.identity | {"delivered": self.delivered * turns}, graph.data.to_plain()
        return FlatState(graph=graph.text, numbers=numbers, position=self.position, common=common, data=data).to_dict()

    @classmethod
    def from_dict(
        cls,
        state: Any,
        graph: GraphIdentity,
        layout: RankLayout,
        *,
        allow_pickle: bool = False,
        allow_other_data: bool = False,
    ) -> LoaderState:
        """Read a flat dict that must fit the graph, its data, unless ``allow_other_data``, and the layout.

        Raises: StateMismatchError, showing both sides; StateError for what is no loader state.
        """
        flat = FlatState.read(state, allow_pickle=allow_pickle)
        numbers = flat.numbers
        theirs, ours = (numbers["rank"], numbers["world_size"]), (layout.rank, layout.world_size)
        graph.check(flat, of_this_rank=theirs == ours, allow_other_data=allow_other_data)
        if theirs == (0, 1) and is_of_agreement(flat.position) and (layout.turns == 1 or theirs != ours):
            flat = FlatState.read(merge([state]), allow_pickle=allow_pickle)  # without what that rank alone repeats
            numbers = flat.numbers
        if theirs == ours:
            _check_shards(numbers["num_shards"], layout)
            return cls.of(numbers | {"delivered": numbers["delivered"] // layout.turns}, position=flat.position)
        if theirs != (0, 1):
            raise StateMismatchError(
                f"the state was saved by rank {theirs[0]} of {theirs[1]}, this loader is rank {ours[0]} of {ours[1]}: "
                "every rank has its own part of the stream. Load on each rank the state that the same rank has saved, "
                "in a run of as many ranks, or the one state of all: torchpipe.state.merge([...]), or "
                'state_dict(states="all")'
            )
        return _part_of(flat, layout, f"state {zlib.crc32(state['payload']):08x}")


def _part_of(flat: FlatState, layout: RankLayout, origin: str) -> LoaderState:
    """The part of ``layout`` in a state of all shards."""
    total, world = flat.numbers["num_shards"], layout.world_size
    if not layout.common:
        raise StateMismatchError(
            f"the state is one of all shards, and this graph divides its stream among {world} ranks apart from their "
            "shards: give the reading service total_shards=..., which divides among all shards alike"
        )
    if total % world:
        fits = ", ".join(str(ranks) for ranks in range(1, total + 1) if total % ranks == 0)[:200]
        raise StateMismatchError(
            f"the state has {total} shards, which {world} ranks cannot host in equal parts: run as many ranks as "
            f"divide them ({fits}), or give the reading service total_shards={total}, which any number can host"
        )
    shards = total // world
    _check_shards(shards, layout, total)
    position, delivered = flat.position, flat.numbers["delivered"]
    if position is not None:
        parts, each = deal(position, total, world)
        position, delivered = parts[layout.rank], layout.agreed(each) // layout.turns
    numbers = flat.numbers | {"rank": layout.rank, "world_size": world, "num_shards": shards, "delivered": delivered}
    return LoaderState.of(numbers, position=position, origin=origin)


def _check_shards(shards: int, layout: RankLayout, total: int | None = None) -> None:
    if layout.num_shards is not None and layout.num_shards != shards:
        among = "" if total is None else f" ({total} of all ranks, divided among {layout.world_size})"
        raise StateMismatchError(
            f"the state was saved with num_shards={shards}{among}, this loader has num_shards={layout.num_shards}: "
            "the streams differ. Leave num_shards unset to take the state's (num_workers may be anything)"
        )
    if shards > MAX_SHARDS:
        raise StateMismatchError(f"num_shards is {shards}, and can be 1 to {MAX_SHARDS} on each rank: use more ranks")


def _graph_difference(saved: str, ours: str) -> str:
    theirs, mine = first_difference(saved, ours)
    heads = theirs.partition("(")[0], mine.partition("(")[0]
    same_node = heads[0] == heads[1] != ""
    argument = first_argument(theirs, mine) if same_node else None
    return (
        f"the state belongs to another graph: fingerprint {digest(saved)} was saved, this graph has {digest(ours)}. "
        f"The first node that differs{'' if argument is None else f', in its {argument}'}:\n"
        f"  saved: {theirs}\n  here:  {mine}\n"
        "Load it into the graph that saved it, or begin a new run"
        + same_node
        * ". What may differ between two runs of a function's object (a counter, a time), name with a "
        "leading underscore, or give the object a state_dict() and load_state_dict()"
        + any(head.endswith(" Mixer") for head in heads)
        * ". A mix keeps the inputs that it had in the state: declare one that is to come later from the start, with "
        "weight 0"
    )


def state_of_all(
    own: Callable[[], dict[str, Any]], settled: bool, gather: Callable[[Any], list[Any]]
) -> dict[str, Any]:
    """The one state of all ranks, on each; ``own`` gives this rank's. ``settled``: True if its seed is that of all.

    All come to the same conclusion: a rank that has no state says so to the others. Raises: what ``own`` raises;
    RankError if it was another rank's that failed; StateMismatchError if the states cannot be joined.
    """
    failure: Exception | None = None
    mine: Any = None
    try:
        mine = own()
    except Exception as error:
        failure, mine = error, f"{type(error).__name__}: {error}"
    answers = gather((mine, settled))
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {state}" for rank, (state, _) in enumerate(answers) if not isinstance(state, dict)]
    if failed:
        raise RankError("there is no state of all ranks, since not all have one:\n  " + "\n  ".join(failed))
    seed = answers[0][0]["seed"]  # that of rank 0 is going to be the run's
    return merge(state if fixed else _with_seed(state, seed) for state, fixed in answers)


def _with_seed(state: dict[str, Any], seed: int) -> dict[str, Any]:
    flat = FlatState.read(state, keep_opaque=True)
    return replace(flat, numbers=flat.numbers | {"seed": seed}).to_dict()
