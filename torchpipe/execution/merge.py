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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torchpipe.errors import GraphError, IteratorInvalidated, StateError, raise_error_of
from torchpipe.execution.clock import Clock
from torchpipe.execution.epoch import EpochStart
from torchpipe.execution.provider import AHEAD, ShardPosition, ShardProvider, StartShards
from torchpipe.execution.shard import Chunk
from torchpipe.node.announce import announce_replays
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import Cursor
from torchpipe.state.rotation import Rotation, turn_of
from torchpipe.stats import MergeStats

__all__ = ["CursorParts", "MergeIterator", "MergePosition", "Merges", "shards_in_turn"]


class Merges:
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
                positions = [position for merge in self._open for position in merge.positions()]
                for branch in set(range(self._branches)) - {merge.branch for merge in self._open}:
                    positions += self._open[0].beginning_of(branch)
                self._provider = self._start(positions)
            if self._interrupted:
                self._provider.interrupt()
            return self._provider

    def snapshot(self, lane: int, count: int) -> bytes | None:
        """As :meth:`ShardProvider.snapshot`, between two pulls, from whichever thread these are."""
        if self._provider is None:
            raise StateError(AHEAD)
        with ExitStack() as stack:
            for merge in self._open:
                stack.enter_context(merge.between_pulls())
            return self._provider.snapshot(lane, count)

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
CursorParts: TypeAlias = tuple[bytes | None, int, int]
"""A shard's position: a snapshot, the items to drop after it, the items before all."""


@dataclass(slots=True)
class _Rest:
    """What is at hand of a shard, and in no block. ``snapshots``: each after so many of the items."""

    items: list[Any] = field(default_factory=list)
    snapshots: list[tuple[int, bytes]] = field(default_factory=list)
    ended: bool = False
    error: BaseException | None = None  # after the items
    after: bytes | None = None  # where the next pass begins

    def add(self, chunk: Chunk) -> None:
        self.items = [*self.items, *chunk.items] if self.items else chunk.items
        if chunk.ended:
            self.after = chunk.snapshot
        elif chunk.snapshot is not None:
            self.snapshots.append((len(self.items), chunk.snapshot))
        self.ended, self.error, chunk.error = chunk.ended, chunk.error, None

    def take(self, count: int) -> tuple[list[Any], list[tuple[int, bytes]]]:
        """The first ``count`` items, and the snapshots on the way."""
        taken, self.items = self.items[:count], self.items[count:]
        snapshots = [(at, snapshot) for at, snapshot in self.snapshots if at <= count]
        self.snapshots = [(at - count, snapshot) for at, snapshot in self.snapshots if at > count]
        return taken, snapshots

    @property
    def open(self) -> bool:
        """True if more may follow the items."""
        return not self.ended and self.error is None


@dataclass(frozen=True, slots=True)
class MergePosition:
    """Where the merge stands: before a block, after the items that have been popped from it.

    One object, so that an interrupt leaves either the one before or the one after, whole.
    """

    cursors: list[CursorParts]  # of each shard, before the block
    live: list[int]  # the shards in rotation
    turn: int = 0  # whose item is next, as an index into the live ones
    ragged: bool = False  # some have given more than the rounds say
    in_turn: list[int] = field(default_factory=list)  # the shards that take turns in the block
    block: list[Any] = field(default_factory=list)  # the last one is the next to be handed out
    size: int = 0  # of the block, when it was full
    snapshots: list[list[tuple[int, bytes]]] = field(default_factory=list)  # of the shards in turn, in the block
    single_shard: bool = False  # all of the block is of the shard whose turn it is

    @property
    def taken(self) -> int:
        """The number of items of the block that have been handed out."""
        return self.size - len(self.block)

    def after(self, taken: int) -> tuple[list[CursorParts], int, bool]:
        """(cursors of all shards, the turn, True if they are ragged) after the first ``taken`` items of the block."""
        cursors, among = list(self.cursors), len(self.in_turn)
        for number, shard in enumerate(self.in_turn[:taken]):
            items = -(-(taken - number) // among)
            snapshot, skip, count = cursors[shard]
            skip += items
            for at, newer in self.snapshots[number]:
                if at <= items:
                    snapshot, skip = newer, items - at
            cursors[shard] = (snapshot, skip, count + items)
        if not self.ragged:
            turns = min(1, taken) if self.single_shard else taken
            return cursors, (self.turn + turns) % len(self.live) if self.live else 0, False
        turn, ahead = turn_of([count for _, _, count in cursors], self.live)
        return cursors, turn, any(ahead)

    def rotation(self, taken: int, items_behind: int) -> Rotation:
        """The same as a state."""
        cursors, turn, ragged = self.after(taken)
        return Rotation(tuple(Cursor(*parts) for parts in cursors), tuple(self.live), turn, ragged, items_behind)


def shards_in_turn(cursors: list[CursorParts], live: list[int], turn: int, ragged: bool) -> tuple[list[int], int, bool]:
    """(the shards in the order of their turns, whose turn it is, are some ahead of others). Those ahead wait."""
    if not ragged:
        return live[turn:] + live[:turn], turn, False
    turn, ahead = turn_of([count for _, _, count in cursors], live)
    if any(ahead):
        return [shard for shard, rounds in zip(live[turn:], ahead[turn:]) if not rounds], turn, True
    return live[turn:] + live[:turn], turn, False


class MergeIterator(NodeIterator[Any]):
    """One item from each shard in turn; a shard that has ended leaves the rotation.

    Items are put in order a block at a time, of what is at hand, and popped from its end; how many are left tells the
    position, so that handing out one costs nothing more. State: the rotation, and for each shard a cursor and the
    number of its items handed out. Reading it asks nobody; another thread may do so, and waits while a block is made.
    """

    exact_after_error = True  # counts an item as it hands it out
    untimed = True

    def __init__(self, node: DataPipe, context: Context, start: EpochStart, merges: Merges, branch: int = 0) -> None:
        super().__init__(node, context)
        self.branch = branch
        self._numbers = start.shards
        self._total = start.num_shards
        self._first_lane = branch * start.num_shards
        self._merges = merges
        shards = list(range(len(self._numbers)))
        self._position = MergePosition([(None, 0, 0)] * len(shards), shards)
        self._items_behind = 0  # another rank's shards have given so many more: they are left when all end
        self._rests = [_Rest() for _ in shards]
        self._between = True  # no block is being made, nor was that interrupted
        self._lock = threading.RLock()
        self.clock = Clock()
        self._pull_s = [0.0] * len(shards)  # of each shard: how long it was waited for
        merges.join(self)

    @property
    def delivered(self) -> int:
        """The number of items handed out in this epoch, those before a restore included."""
        position = self._position
        return sum(count for _, _, count in position.cursors) + position.taken

    @property
    def block(self) -> list[Any]:
        """Items that are there, the next one last. To pop one is to be handed it."""
        return self._position.block

    def between_pulls(self) -> AbstractContextManager[object]:
        """Meanwhile, nothing is pulled for it."""
        return self._lock

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return super().state_dict()

    def state_later(self) -> Callable[[], dict[str, Any]]:
        position, items_behind = self._position, self._items_behind
        taken = position.taken
        return lambda: position.rotation(taken, items_behind).to_state()

    def get_state(self) -> dict[str, Any]:
        position = self._position
        return position.rotation(position.taken, self._items_behind).to_state()

    def set_state(self, state: dict[str, Any]) -> None:
        rotation = Rotation.from_state(state, len(self._rests))
        announce_replays((cursor, cursor.count) for cursor in rotation.cursors)
        cursors: list[CursorParts] = [(cursor.snapshot, cursor.skip, cursor.count) for cursor in rotation.cursors]
        self._position = MergePosition(cursors, list(rotation.live), rotation.turn, rotation.ragged)
        self._items_behind = rotation.items_behind

    def positions(self) -> list[ShardPosition]:
        """Where the shards that go on have to start. Only before the first item."""
        at = self._position
        return [
            ShardPosition(
                shard=self._numbers[index],
                cursor=Cursor(snapshot, skip),
                count=count,
                branch=self.branch,
                lane=self._lane(index),
            )
            for index, (snapshot, skip, count) in ((index, at.cursors[index]) for index in at.live)
        ]

    def beginning_of(self, branch: int) -> list[ShardPosition]:
        """Where the shards of another branch have to start, from which nobody has read yet."""
        first = branch * self._total
        return [
            ShardPosition(shard=number, cursor=Cursor(None, 0), count=0, branch=branch, lane=first + number)
            for number in self._numbers
        ]

    def between(self) -> list[Cursor] | None:
        """Where the next pass over each shard begins, all having ended; None: at the start, or nobody knows."""
        with self._lock:
            rotation = all(rest.ended for rest in self._rests) and any(rest.after is not None for rest in self._rests)
            return [Cursor(rest.after, 0, 0) for rest in self._rests] if rotation else None

    def _lane(self, index: int) -> int:
        return self._first_lane + self._numbers[index]

    def run(self) -> Iterator[Any]:
        clock = self.clock
        clock.begin_wait()
        provider = self._merges.provider()
        while True:
            with self._lock:
                if self.is_closed:  # by another thread, between two blocks
                    raise IteratorInvalidated("the epoch was ended from another thread while it was being read")
                clock.begin_wait()
                self._between = False
                position = self._next_position(provider)
                self._position = position  # until here, the state is that after the block before
                self._between = True
                clock.end_wait(position.size)
            block = position.block
            if not block:
                return
            pop = block.pop
            while block:
                yield pop()

    def _next_position(self, provider: ShardProvider) -> MergePosition:
        """After the block, with a new one of what is at hand; if nothing is, of the chunk that is pulled for it."""
        cursors, turn, ragged = self._position.after(self._position.size)
        live = list(self._position.live)
        while live:
            in_turn, turn, ragged = shards_in_turn(cursors, live, turn, ragged)
            rest = self._rests[in_turn[0]]
            if rest.items:
                return self._with_block(cursors, live, turn, ragged, in_turn)
            if rest.error is not None:
                raise_error_of(rest)
            if rest.ended:
                live.remove(in_turn[0])
                turn = turn % len(live) if live else 0
            else:
                self._pull(provider, in_turn[:1])
        return MergePosition(cursors, live)

    def _pull(self, provider: ShardProvider, shards: list[int]) -> None:
        began = time.perf_counter()
        lane, chunk = provider.pull_any([self._lane(shard) for shard in shards])
        came = next(shard for shard in shards if self._lane(shard) == lane)
        self._rests[came].add(chunk)
        self._pull_s[came] += time.perf_counter() - began

    def left(self) -> tuple[int, bool]:
        """The number of items that are made and not handed out; are there no others? Called by the consumer.

        Shards with a single one are asked for more: whether that was the last one tells equal parts from others.
        """
        with self._lock:
            provider, live = self._merges.provider(), self._position.live
            for index in live:
                rest = self._rests[index]
                while rest.open and len(rest.items) < 2:
                    self._pull(provider, [index])
            items = len(self._position.block) + sum(len(rest.items) for rest in self._rests)
            return items, all(self._rests[index].ended for index in live)

    def _with_block(
        self, cursors: list[CursorParts], live: list[int], turn: int, ragged: bool, in_turn: list[int], most: int = _ALL
    ) -> MergePosition:
        """The position before a block of what is at hand, ``most`` items of it, in order and reversed."""
        ready = [len(self._rests[shard].items) for shard in in_turn]
        # Full rounds, and of one more round as many as come before the first shard that has nothing left
        size = min(min(ready) * len(in_turn) + ready.index(min(ready)), most, len(in_turn) if ragged else most)
        block: list[Any] = [None] * size
        snapshots = []
        for index, shard in enumerate(in_turn):
            items, on_the_way = self._rests[shard].take(-(-(size - index) // len(in_turn)))
            block[index :: len(in_turn)] = items
            snapshots.append(on_the_way)
        block.reverse()
        return MergePosition(cursors, live, turn, ragged, in_turn, block, size, snapshots)

    def stats(self) -> MergeStats:
        """How long it waited, for whom. Any thread."""
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
