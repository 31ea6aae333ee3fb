"""The merge: takes from the shards in turn and remembers, by a cursor for each shard, what was handed out.

Runs in the consumer's process. It decides the order; who produces the items, and where, is behind
:class:`ShardProvider`.

Each branch that the main section reads has a merge of its own. A *lane* is one shard of one branch; lane
``branch * num_shards + shard``. All lanes of an epoch have one provider, which starts when the first item is wanted.
Where a run has more shards than this process hosts, the merge counts its own: *positions* 0, 1, 2 ... for their
numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torchpipe.errors import GraphError, IteratorInvalidated, StateError, raise_error_of
from torchpipe.execution.clock import Clock
from torchpipe.execution.epoch import EpochStart, Uneven
from torchpipe.execution.provider import AHEAD, ShardProvider, StartShards
from torchpipe.execution.shard import Chunk, behind
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.node.user_warnings import announce_replays
from torchpipe.state import Cursor
from torchpipe.state.cursor import Rotation, turn_of
from torchpipe.stats import MergeStats

__all__ = ["MergeIterator", "MergeSet", "Stretch"]


class MergeSet:
    """The merges of one epoch, which share a provider. It starts with the first pull, and ends when all are closed.

    One of ``branches`` may have no merge until then: a node of the user's begins to read it later, from its beginning.
    """

    def __init__(self, start: StartShards, branches: int = 1) -> None:
        self._start = start
        self._branches = branches
        self._read: set[int] = set()
        self._lock = threading.Lock()
        self._provider: ShardProvider | None = None
        self._interrupted = False
        self._open: list[MergeIterator] = []

    def join(self, merge: MergeIterator) -> None:
        """Take part. Raises: GraphError once the shards have begun."""
        if self._provider is not None and merge.branch in self._read:
            raise GraphError(
                f"the shards' items of {node_name(merge.node)} come once an epoch, and a node behind it, in the main "
                "process, reads them a second time (cycle(), say). Put it before what has to run in the main process "
                "(to_device, say)"
            )
        self._read.add(merge.branch)
        self._open.append(merge)

    def provider(self) -> ShardProvider:
        """The provider, started at the positions that all merges have when the first of them asks."""
        with self._lock:
            if self._provider is None:
                cursors = {lane: cursor for merge in self._open for lane, cursor in merge.cursors().items()}
                for branch in set(range(self._branches)) - {merge.branch for merge in self._open}:
                    cursors |= self._open[0].beginning_of(branch)
                self._provider = self._start(cursors)
            if self._interrupted:
                self._provider.interrupt()
            return self._provider

    @contextmanager
    def between_pulls(self) -> Iterator[None]:
        """Meanwhile, nothing is pulled, from whichever thread."""
        with ExitStack() as stack:
            for merge in self._open:
                stack.enter_context(merge.between_pulls())
            yield

    def is_ahead(self, lane: int, count: int) -> bool:
        """True if ``lane`` is ahead, as :meth:`ShardProvider.is_ahead` has it."""
        return self._provider is not None and self._provider.is_ahead(lane, count)

    def snapshot(self, lane: int, count: int) -> bytes | None:
        """The snapshot of ``lane``, as :meth:`ShardProvider.snapshot` has it, between two pulls."""
        if self._provider is None:
            raise StateError(AHEAD)
        return self._provider.snapshot(lane, count)

    def next_pass(self, lane: int, count: int) -> Cursor | None:
        """The cursor from :meth:`ShardProvider.next_pass`."""
        return None if self._provider is None else self._provider.next_pass(lane, count)

    def interrupt(self) -> None:
        self._interrupted = True
        if self._provider is not None:
            self._provider.interrupt()

    @property
    def rebuild_s(self) -> float:
        """Seconds that it took to rebuild items from what was sent."""
        return 0.0 if self._provider is None else self._provider.rebuild_s

    def leave(self, merge: MergeIterator) -> None:
        """``merge`` needs no more items. Idempotent."""
        self._open = [other for other in self._open if other is not merge]
        if not self._open and self._provider is not None:
            self._provider.close()


_ALL = 1 << 62


@dataclass(slots=True)
class _Rest:
    """The rest of a shard, in no block. ``count`` items of the shard have come, these being the last; ``marks``: the
    snapshots that came on the way.
    """

    count: int = 0
    items: list[Any] = field(default_factory=list)
    marks: list[Cursor] = field(default_factory=list)
    ended: bool = False
    error: BaseException | None = None  # after the items
    after: bytes | None = None  # where the next pass begins

    def add(self, chunk: Chunk) -> None:
        self.items = [*self.items, *chunk.items] if self.items else chunk.items
        self.count += len(chunk.items)
        if chunk.ended:
            self.after = chunk.snapshot
        elif chunk.snapshot is not None:
            self.marks.append(Cursor(chunk.snapshot, 0, self.count))
        self.ended, self.error, chunk.error = chunk.ended, chunk.error, None

    def take_all(self) -> list[Any]:
        taken, self.items = self.items, []
        return taken

    def take(self, count: int) -> list[Any]:
        """The first ``count`` items."""
        taken, self.items = self.items[:count], self.items[count:]
        return taken

    @property
    def open(self) -> bool:
        """True if more may follow the items."""
        return not self.ended and self.error is None


@dataclass(slots=True, eq=False)
class Stretch:
    """Items from ``begin`` on, of the shards of ``order`` in turn: how many have been taken tells where each stands.

    ``marks``: of each in ``order``, the snapshots on the way; more may be added. ``block``: the items that are there,
    the next one last, and how many there are of the stretch up to their end. It is replaced as a whole, so that an
    interrupt leaves either the one before or the one after. ``keeps_last``: a cursor begins before the last item that
    its shard has given, which a rank may have to give again.
    """

    begin: Rotation
    order: Sequence[int]
    marks: list[list[Cursor]]
    block: tuple[list[Any], int]
    keeps_last: bool = False

    @property
    def taken(self) -> int:
        """The number of items that have been handed out."""
        block, end = self.block
        return end - len(block)

    def at(self, taken: int) -> Rotation:
        """The rotation after the first ``taken`` items."""
        begin, among = self.begin, len(self.order)
        cursors, live = list(begin.cursors), begin.live
        for number, shard in enumerate(self.order[:taken]):
            cursor = cursors[shard]
            count = cursor.count - (number - taken) // among
            for mark in self.marks[number]:
                if mark.count <= count - self.keeps_last:
                    cursor = mark
            cursors[shard] = cursor.after(count - cursor.count, None)
        if begin.ragged:
            return Rotation.after(cursors, live, begin.items_behind)
        turns = taken if among == len(live) else min(taken, 1)  # out of order, a stretch is of one of several
        turn = (begin.turn + turns) % len(live) if live else 0
        return Rotation(tuple(cursors), live, turn, False, begin.items_behind)


class MergeIterator(NodeIterator[Any]):
    """One item from each shard in turn; a shard that has ended leaves the rotation.

    Items are put in order a block at a time, of what is at hand, and popped from its end; how many are left tells the
    position, so that handing out one costs nothing more. State: the rotation, and for each shard a cursor and the
    number of its items handed out. Reading it asks nobody; another thread may do so, and waits while a block is made.
    """

    exact_after_error = True  # counts an item as it hands it out
    untimed = True

    def __init__(self, node: DataPipe, context: Context, start: EpochStart, merges: MergeSet, branch: int = 0) -> None:
        super().__init__(node, context)
        self.branch = branch
        self._numbers = start.shards
        self._total = start.num_shards
        self._start = start
        self._keeps_last = start.rounds is Uneven.PAD
        self._first_lane = branch * start.num_shards
        self._merges = merges
        self._rests = [_Rest() for _ in self._numbers]
        self._marked = 0  # snapshots that came since the stretch began
        self._stretch = self._from(Rotation.begin(len(self._numbers)))
        self._provider: ShardProvider | None = None  # since the first item was wanted
        self._lock = threading.RLock()
        self.clock = Clock()
        self._pull_s = [0.0] * len(self._numbers)  # of each shard: how long it was waited for
        merges.join(self)

    @property
    def delivered(self) -> int:
        """The number of items handed out in this epoch, those before a restore included."""
        stretch = self._stretch
        return sum(stretch.begin.counts) + stretch.taken

    @property
    def block(self) -> list[Any]:
        """Items that are there, the next one last. To take one off it is to be handed it."""
        return self._stretch.block[0]

    def between_pulls(self) -> AbstractContextManager[object]:
        """Meanwhile, nothing is pulled for it."""
        return self._lock

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return super().state_dict()

    def state_later(self) -> Callable[[], dict[str, Any]]:
        stretch, taken = self._stretch, self._stretch.taken
        return lambda: stretch.at(taken).to_state()

    def get_state(self) -> dict[str, Any]:
        stretch = self._stretch
        return stretch.at(stretch.taken).to_state()

    def set_state(self, state: dict[str, Any]) -> None:
        rotation = Rotation.from_state(state, len(self._rests))
        announce_replays((cursor, cursor.count) for cursor in rotation.cursors)
        for rest, cursor in zip(self._rests, rotation.cursors):
            rest.count = cursor.count
        self._stretch = self._from(rotation)

    def cursors(self) -> dict[int, Cursor]:
        """The cursors at which the lanes that go on have to start. Only before the first item."""
        begin = self._stretch.begin
        return {self._lane(index): begin.cursors[index] for index in begin.live}

    def beginning_of(self, branch: int) -> dict[int, Cursor]:
        """The cursors at which the lanes of another branch have to start, from which nobody has read yet."""
        first = branch * self._total
        return {first + number: Cursor() for number in self._numbers}

    def between(self, position: dict[str, Any]) -> list[Cursor] | None:
        """The start of the next pass over each shard if this one is left at ``position``; None: that of the first."""
        with self._lock:
            where = Rotation.from_state(position, len(self._rests))
            found = [self._next_pass(index, cursor, index in where.live) for index, cursor in enumerate(where.cursors)]
            return found if any(cursor.snapshot is not None for cursor in found) else None

    def _next_pass(self, index: int, cursor: Cursor, goes_on: bool) -> Cursor:
        rest = self._rests[index]
        if not goes_on and rest.ended:
            return Cursor(rest.after, 0, 0)
        stands = self._merges.next_pass(self._lane(index), cursor.count) if goes_on else None
        return stands or behind(cursor, self._start.seed, self._start.epoch, ended=not goes_on)

    def _lane(self, index: int) -> int:
        return self._first_lane + self._numbers[index]

    def run(self) -> Iterator[Any]:
        while block := self.fill():
            pop = block.pop
            while block:
                yield pop()

    def fill(self) -> list[Any]:
        """``block``, with new items if it was empty. It stays empty at the end."""
        block = self._stretch.block[0]
        if block:
            return block
        self.items()  # from now on this has begun
        clock = self.clock
        clock.begin_wait()
        if self._provider is None:
            self._provider = self._merges.provider()
        with self._lock:
            if self.pass_engine.is_closed:  # by another thread, between two blocks
                raise IteratorInvalidated("the epoch was ended from another thread while it was being read")
            clock.begin_wait()
            stretch, block = self._next(self._provider)
            stretch.block = block, stretch.block[1] + len(block)  # until here, the state is that after the last one
            self._stretch = stretch
            clock.end_wait(len(block))
        return block

    def _from(self, begin: Rotation, order: Sequence[int] | None = None) -> Stretch:
        """A stretch that begins there; in the order of turns, unless another is given."""
        if begin.ragged:
            begin = Rotation.after(begin.cursors, begin.live, begin.items_behind)
        if order is None:
            order = begin.live[begin.turn :] + begin.live[: begin.turn]
        if begin.ragged:  # those ahead wait
            turn, ahead = turn_of(begin.counts, begin.live)
            order = [shard for shard, rounds in zip(begin.live[turn:], ahead[turn:]) if not rounds]
        marks = []
        for shard in order:
            rest, count = self._rests[shard], begin.cursors[shard].count
            rest.marks = [
                mark for mark in rest.marks if mark.count > count - self._keeps_last
            ]  # another list: a stretch keeps its own
            marks.append(rest.marks)
        self._marked = 0
        return Stretch(begin, order, marks, ([], 0), self._keeps_last)

    def _next(self, provider: ShardProvider) -> tuple[Stretch, list[Any]]:
        """The items at hand, the next one last, and the stretch that they go on; if there are none, those of the chunk
        that is pulled for it. The cost does not depend on the number of shards, but where one ends or is ahead.
        """
        stretch = self._stretch
        if stretch.begin.ragged or self._marked > len(stretch.order):  # older snapshots are let go of
            stretch = self._from(stretch.at(stretch.block[1]))
        while order := stretch.order:
            end = stretch.block[1]
            shard = order[end % len(order)]
            rest = self._rests[shard]
            if rest.items:
                return stretch, self._in_order(stretch, len(order) if stretch.begin.ragged else _ALL)
            if rest.error is not None:
                raise_error_of(rest)
            if rest.ended:
                stretch = self._from(stretch.at(end).without(shard))
            else:
                self._pull(provider, shard)
        return stretch, []

    def _pull(self, provider: ShardProvider, shard: int) -> None:
        began = time.perf_counter()
        self._add(shard, provider.pull(self._lane(shard)), began)

    def _add(self, shard: int, chunk: Chunk, began: float) -> None:
        self._rests[shard].add(chunk)
        self._marked += chunk.snapshot is not None
        self._pull_s[shard] += time.perf_counter() - began

    def left(self) -> tuple[int, bool]:
        """The number of items that are made and not handed out; are there no others? Called by the consumer.

        Shards with a single one are asked for more: whether that was the last one tells equal parts from others.
        """
        with self._lock:
            provider, live = self._merges.provider(), self._stretch.begin.live
            for index in live:
                rest = self._rests[index]
                while rest.open and len(rest.items) < 2:
                    self._pull(provider, index)
            items = len(self.block) + sum(len(rest.items) for rest in self._rests)
            return items, all(self._rests[index].ended for index in live)

    def _in_order(self, stretch: Stretch, most: int) -> list[Any]:
        """``most`` items of what is at hand, in the order of turns and reversed."""
        rests, order, end = self._rests, stretch.order, stretch.block[1]
        among = len(order)
        first = rests[order[end % among]]
        if len(first.items) == 1 and (among == 1 or not rests[order[(end + 1) % among]].items):
            return first.take_all()
        turns = (rests[order[number % among]] for number in range(end, end + among))
        ready = list(takewhile(lambda rest: rest.items, turns))
        size = len(ready)
        if size == among:  # Full rounds, and of one more round as many as come before the first that has nothing left
            least = min(len(rest.items) for rest in ready)
            size = least * among + next(number for number, rest in enumerate(ready) if len(rest.items) == least)
        size = min(size, most)
        block: list[Any] = [None] * size
        for number, rest in enumerate(ready[:size]):
            block[number::among] = rest.take(-(-(size - number) // among))
        block.reverse()
        return block

    def stats(self) -> MergeStats:
        """The time that it waited, and for which shards. Any thread."""
        clock = self.clock
        return MergeStats(
            branch=self.branch,
            wait_s=clock.waited_s(),
            shard_wait_s=tuple(self._pull_s),
            rebuild_s=self._merges.rebuild_s,
        )

    def interrupt(self) -> None:
        self._merges.interrupt()

    def close(self) -> None:
        self.clock.close()
        with self._lock, ExitStack() as stack:  # whoever fetches items in another thread has been interrupted
            stack.callback(self._merges.leave, self)
            with suppress(ValueError):  # and is just about to find that out
                super().close()
