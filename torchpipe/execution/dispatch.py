"""Dispatching: a part of the graph runs once, and its items are dealt to the shards, item g to shard g mod n.

Runs in the user's process (in-process execution), in the dispatcher process (:class:`DispatchSource`) and in workers
(:class:`DispatchedIterator`).

Marks, which are snapshots of the source, travel to every shard after the items that they follow. A shard therefore
always knows a mark that it has passed, and saves it with its own state; a restore starts the source at the newest mark
that no shard has yet to pass, and drops what each shard has had already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torchpipe.errors import GraphError, StateError
from torchpipe.execution.epoch import ShardSpec
from torchpipe.execution.shard import Chunk, Keep, Shard
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.host import Host
from torchpipe.node.iterator import NodeIterator, refusing_misfits, stored_count
from torchpipe.node.traits import DataPipe
from torchpipe.state import Cursor, decode

__all__ = [
    "DispatchSource",
    "DispatchStart",
    "DispatchSupply",
    "Dispatched",
    "DispatchedIterator",
    "Entry",
    "dispatch_start",
]

# A state is a DispatchedIterator's if a Cursor stands under this key: other nodes may use the name
_KEY = "dealt"


Entry: TypeAlias = tuple[Any] | Cursor
"""An item, alone in a tuple, or a mark: a cursor of the source after the items before it, with none to drop."""


class DispatchSupply(ABC):
    """The source of a shard's dispatched items."""

    @abstractmethod
    def take(self, shard: int) -> Entry | None:
        """The next entry for ``shard``; waits for it. None at the end. Raises: the source's error at its place."""


class Dispatched(IterDataPipe[Any]):
    """Stands, in the shard section, for the part of the graph that the dispatcher runs."""

    divides = True

    def iterate(self, context: Context) -> NodeIterator[Any]:
        if any(context.rounds):
            raise GraphError(
                "a dispatched stream can be read once in an epoch: put cycle() or cache() before "
                "sharding_round_robin_dispatch()"
            )
        if not isinstance(context.host.supply, DispatchSupply):
            raise GraphError("a dispatched part of a graph runs only under a reading service")
        return DispatchedIterator(self, context, context.host.supply)


class DispatchedIterator(NodeIterator[Any]):
    """One shard's part of the dispatched stream. State: how many items it has had, and the last mark it has passed."""

    untimed = True

    def __init__(self, node: Dispatched, context: Context, supply: DispatchSupply) -> None:
        super().__init__(node, context)
        self._supply = supply
        self._taken = 0
        self._mark = Cursor()

    def get_state(self) -> dict[str, Any]:
        mark, taken = self._mark, self._taken
        since = taken - _dispatched_before(mark.count, self._shards, self.context.local_shard)
        return {_KEY: Cursor(mark.snapshot, since, taken), "position": mark.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self._taken, self._mark = _read(state, self._shards, self.context.local_shard)

    @property
    def _shards(self) -> int:
        """Among how many the items are dealt: the shards of this rank."""
        return self.context.num_shards // self.context.world_size

    def run(self) -> Iterator[Any]:
        take, shard = self._supply.take, self.context.local_shard
        while (entry := take(shard)) is not None:
            if isinstance(entry, Cursor):
                self._mark = entry
            else:
                self._taken += 1
                yield entry[0]


@dataclass(frozen=True, kw_only=True)
class DispatchStart:
    """The start of the source, and, for each shard that goes on, the first of its items that it has not had."""

    mark: Cursor
    needed: Mapping[int, int]


def dispatch_start(snapshots: Mapping[int, bytes | None], num_shards: int) -> DispatchStart:
    """The start of the source from which every shard can go on from its own snapshot (None: from the start)."""
    needed: dict[int, int] = {}
    marks = [Cursor()]
    for shard, snapshot in snapshots.items():
        state, taken = None if snapshot is None else _find(decode(snapshot, keep_opaque=True)), 0
        if state is not None:
            with refusing_misfits("the dispatched part"):
                taken, mark = _read(state, num_shards, shard)
            marks.append(mark)
        needed[shard] = taken * num_shards + shard
    first = min(needed.values(), default=0)
    # The shard that has had least has passed only marks before its next item, and one of these is the newest allowed.
    return DispatchStart(
        mark=max((mark for mark in marks if mark.count <= first), key=lambda mark: mark.count), needed=needed
    )


def _find(state: Any) -> dict[str, Any] | None:
    """The state of the one dispatched input inside a shard's snapshot.

    Branches that share a pass over it may have states of several moments, of which the oldest is what they go on from.
    """
    stack, found = [state], list[dict[str, Any]]()
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if isinstance(value.get(_KEY), Cursor):
                found.append(value)
            else:
                stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
    return min(found, key=lambda value: value[_KEY].count, default=None)


def _dispatched_before(position: int, shards: int, shard: int) -> int:
    """The number of items of ``shard`` among the first ``position`` items."""
    return (position - shard + shards - 1) // shards


def _read(state: dict[str, Any], shards: int, shard: int) -> tuple[int, Cursor]:
    """The number of items that the shard has had, and the mark after which it stands."""
    cursor, position = state[_KEY], stored_count(state, "position")
    if not isinstance(cursor, Cursor) or (cursor.snapshot is None) != (position == 0):
        raise StateError(f"the state is damaged: the dispatched part stands after {position} items of no snapshot")
    if cursor.count - cursor.skip != _dispatched_before(position, shards, shard):
        raise StateError(
            f"the state is damaged: of {position} dispatched items, shard {shard} of {shards} cannot have had "
            f"{cursor.count - cursor.skip}. Use an older checkpoint"
        )
    return cursor.count, Cursor(cursor.snapshot, 0, position)


class DispatchSource(DispatchSupply):
    """Runs the dispatched part and deals its items, keeping for each shard what it has not asked for yet.

    While one shard starves, the others' items pile up: nothing else is free of deadlocks when shards filter unevenly.
    ``longest`` tells how far that went. Not thread-safe.
    """

    def __init__(self, producer: Shard | None, num_shards: int, start: DispatchStart) -> None:
        self.position = start.mark.count
        self.over = False
        self.error: BaseException | None = None
        self.longest = 0
        self.fail_at: tuple[int, BaseException] | None = None  # raise this error in the place of that item
        self.producer = producer
        self._num_shards = num_shards
        self._needed = start.needed
        self._ready: dict[int, deque[Entry]] = {shard: deque() for shard in start.needed}

    @classmethod
    def open(
        cls,
        graph: DataPipe,
        spec: ShardSpec,
        start: DispatchStart,
        *,
        host: Host | None = None,
        manage_random: bool = True,
        passing: tuple[type[BaseException], ...] = (BaseException,),
    ) -> DispatchSource:
        """The source over ``graph`` from ``start`` on; ``spec`` is that of any of its shards."""
        producer = Shard(
            (graph,),
            spec.per_rank,
            manage_random=manage_random,
            section=2,
            host=host or Host(),
            passing=passing,
        )
        producer.within(lambda: producer.start(start.mark))
        return cls(producer, spec.num_shards, start)

    @classmethod
    def failed(cls, error: BaseException, start: DispatchStart) -> DispatchSource:
        """A source that could not be opened: every shard gets ``error``."""
        source = cls(None, 1, start)
        source.over, source.error = True, error
        return source

    def take(self, shard: int) -> Entry | None:
        ready = self._ready[shard]
        while not ready:
            if self.error is not None:
                raise self.error
            if self.over:
                return None
            self._deal(self._next_chunk(1, 0.0, None, None))  # no further: its consumer runs in this thread
        return ready.popleft()

    def waiting(self, shard: int) -> deque[Entry]:
        """The entries that have been dealt to ``shard`` and not been taken."""
        return self._ready[shard]

    def take_ready(self, shard: int, items: int) -> list[Entry]:
        """The next entries dealt to ``shard``: up to ``items`` items and the marks around them."""
        ready, taken = self._ready[shard], list[Entry]()
        while ready and (items or isinstance(ready[0], Cursor)):
            items -= isinstance(ready[0], tuple)
            taken.append(ready.popleft())
        return taken

    def advance(
        self,
        limit: int,
        seconds: float = 0.0,
        note: Callable[[int, int], int] | None = None,
        keep: Keep | None = None,
    ) -> Chunk:
        """Run the source for at most ``limit`` items and deal them. As :meth:`Shard.produce`."""
        chunk = self._next_chunk(limit, seconds, note, keep)
        self._deal(chunk)
        return chunk

    def _deal(self, chunk: Chunk) -> None:
        for item in chunk.items:
            shard = self.position % self._num_shards
            if shard in self._ready and self.position >= self._needed[shard]:
                self._ready[shard].append((item,))
                self.longest = max(self.longest, len(self._ready[shard]))
            self.position += 1
        if chunk.snapshot is not None:
            mark = Cursor(chunk.snapshot, 0, self.position)
            for ready in self._ready.values():
                if ready and isinstance(ready[-1], Cursor):
                    ready.pop()  # the newer one is as good
                ready.append(mark)
        if chunk.ended:
            chunk.error = self._too_short()
        self.over, self.error = chunk.ended or chunk.error is not None, chunk.error

    def _next_chunk(
        self,
        limit: int,
        seconds: float,
        note: Callable[[int, int], int] | None,
        keep: Keep | None,
    ) -> Chunk:
        if self.fail_at is not None:
            limit = min(limit, self.fail_at[0] - self.position)
            if not limit:
                return Chunk(error=self.fail_at[1])
        if self.producer is None:  # it could not be opened: the source is over
            return Chunk(ended=True)
        producer = self.producer
        return producer.within(partial(producer.produce, limit, seconds, note, keep))

    def _too_short(self) -> StateError | None:
        """The error if the stream has ended before items that a shard has had already, as its state says; else None."""
        most = max(self._needed.values(), default=0) - self._num_shards
        if most < self.position:
            return None
        return StateError(
            f"the dispatched stream ended after {self.position} items, and the state says that number {most} was "
            "dealt: has the data become shorter, or does a function not depend on its input alone?"
        )

    def close(self) -> None:
        self._ready = {}
        if self.producer is not None:
            self.producer.within(self.producer.close)
