"""The merge: takes from the shards in strict rotation and remembers, by a cursor for each shard, what was handed out.

Runs in the consumer's process. Imports ``context``, ``iterator``, ``shard`` and ``state``. It decides the order; who
produces the items, and where, is behind :class:`ShardProvider`.

Each branch that the main section reads has a merge of its own. A *lane* is one shard of one branch; lane
``branch * num_shards + shard``. All lanes of an epoch have one provider, which starts when the first item is wanted.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torchpipe.context import Context
from torchpipe.errors import StateError
from torchpipe.iterator import NodeIterator
from torchpipe.nodes import DataPipe
from torchpipe.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["MergeIterator", "Merges", "ShardPosition", "ShardProvider", "StartShards"]


@dataclass(frozen=True, kw_only=True)
class ShardPosition:
    """Where a shard of a branch is to start: ``count`` items of it are before ``cursor``."""

    shard: int
    cursor: Cursor
    count: int
    branch: int = 0
    lane: int


class ShardProvider(ABC):
    """Produces the chunks of a set of lanes, wherever they run."""

    @abstractmethod
    def pull(self, lane: int) -> Chunk:
        """The next chunk of ``lane``; waits for it. The chunk pulled before it has been used up.

        Called by one thread for each branch, so by several at a time if the main section has several feed threads.
        """

    @abstractmethod
    def close(self) -> None:
        """End the production of this epoch. Idempotent."""

    def interrupt(self) -> None:
        """Make a :meth:`pull` that waits in another thread return at once. Thread-safe."""
        return


StartShards: TypeAlias = Callable[[list[ShardPosition]], ShardProvider]


class Merges:
    """The merges of one epoch, which share a provider. It starts with the first pull, and ends when all are closed."""

    def __init__(self, start: StartShards) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._provider: ShardProvider | None = None
        self._interrupted = False
        self._open: list[MergeIterator] = []

    def join(self, merge: MergeIterator) -> None:
        self._open.append(merge)

    def provider(self) -> ShardProvider:
        """The provider, started at the positions that all merges have when the first of them asks."""
        with self._lock:
            if self._provider is None:
                self._provider = self._start([place for merge in self._open for place in merge.positions()])
            if self._interrupted:
                self._provider.interrupt()
            return self._provider

    def interrupt(self) -> None:
        self._interrupted = True
        if self._provider is not None:
            self._provider.interrupt()

    def leave(self, merge: MergeIterator) -> None:
        """``merge`` needs no more items. Idempotent."""
        self._open = [other for other in self._open if other is not merge]
        if not self._open and self._provider is not None:
            self._provider.close()


@dataclass(slots=True)
class _Lane:
    """What the merge has of one shard: the rest of a chunk, and the position behind what is in no block any more."""

    shard: int
    snapshot: bytes | None = None
    skip: int = 0
    count: int = 0
    rest: Chunk = field(default_factory=Chunk)
    ends_chunk: bool = False  # is the last item of its chunk in the block, or before it?

    def behind(self, items: int, in_block: int) -> tuple[bytes | None, int, int]:
        """(snapshot, skip, count) behind ``items`` of the ``in_block`` items that it has in the block."""
        if items == in_block and items and self.ends_chunk and self.rest.snapshot is not None:
            return self.rest.snapshot, 0, self.count + items
        return self.snapshot, self.skip + items, self.count + items


class MergeIterator(NodeIterator[Any]):
    """One item from each shard in turn; a shard that has ended leaves the rotation.

    Items are put in order a block at a time, of what is at hand, and popped from its end; how many are left tells the
    position, so that handing out one costs nothing more. State: the rotation, and for each shard a cursor and the
    number of its items handed out. Reading it asks nobody; another thread may do so, and waits while a block is made.
    """

    exact_after_error = True  # counts an item as it hands it out

    def __init__(self, node: DataPipe, context: Context, num_shards: int, merges: Merges, branch: int = 0) -> None:
        super().__init__(node, context)
        self._branch = branch
        self._merges = merges
        self._lanes = [_Lane(shard) for shard in range(num_shards)]
        self._live = list(self._lanes)
        self._turn = 0  # whose item is the first of the block, as a place among the live ones
        self._block: list[Any] = []  # the last one is the next to be handed out
        self._size = 0  # of the block, when it was full
        self._lock = threading.RLock()
        self._consumer = 0  # the thread that has asked for the block
        merges.join(self)

    @property
    def delivered(self) -> int:
        """The number of items handed out in this epoch, those before a restore included."""
        return sum(lane.count for lane in self._lanes) + self._size - len(self._block)

    @property
    def exhausted(self) -> bool:
        """Is it known already that no item follows? False says nothing: shards may not have told yet."""
        return not self._block and all(
            lane.rest.ended and lane.rest.error is None and not lane.rest.items for lane in self._live
        )

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return super().state_dict()

    @property
    def running(self) -> int:
        """The thread that is inside a ``next`` just now; 0 if there is none."""
        return self._consumer if getattr(self._stream, "gi_running", False) else 0

    def get_state(self) -> dict[str, Any]:
        taken = self._size - len(self._block)
        places = {lane.shard: (lane.snapshot, lane.skip, lane.count) for lane in self._lanes}
        for lane, items, in_block in self._shares(taken):
            places[lane.shard] = lane.behind(items, in_block)
        return {
            "live": [lane.shard for lane in self._live],
            "turn": (self._turn + taken) % len(self._live) if self._live else 0,
            "counts": [count for _, _, count in places.values()],
            "shards": [Cursor(snapshot, skip, count).to_state() for snapshot, skip, count in places.values()],
        }

    def _shares(self, taken: int) -> list[tuple[_Lane, int, int]]:
        """(lane, its items among the first ``taken`` of the block, its items in the block), for all live ones."""
        live = len(self._live)
        return [
            (self._live[(self._turn + place) % live], -(-(taken - place) // live), -(-(self._size - place) // live))
            for place in range(live)
        ]

    def set_state(self, state: dict[str, Any]) -> None:
        cursors = [Cursor.from_state(item) for item in state["shards"]]
        if len(cursors) != len(self._lanes):
            raise StateError(f"the state has {len(cursors)} shards, this loader {len(self._lanes)}")
        live, turn, counts = list(state["live"]), state["turn"], list(state["counts"])
        known = [cursor for cursor in cursors if cursor is not None]
        sound = (
            len(counts) == len(known) == len(cursors)
            and all(type(number) is int and number >= 0 for number in (turn, *counts))
            and counts == [cursor.count for cursor in known]
            and live == [shard for shard in range(len(cursors)) if shard in live]
            and turn < max(1, len(live))
        )
        if not sound:
            raise StateError(
                f"the state is damaged: of {len(cursors)} shards {live!r} go on, beginning with place {turn!r}, behind "
                f"{counts!r} items. Use an older checkpoint"
            )
        self._turn = turn
        self._lanes = [
            _Lane(shard, cursor.snapshot, cursor.skip, count)
            for shard, (cursor, count) in enumerate(zip(known, counts))
        ]
        self._live = [self._lanes[shard] for shard in live]

    def positions(self) -> list[ShardPosition]:
        """Where the shards that go on have to start. Only before the first item."""
        return [
            ShardPosition(
                shard=lane.shard,
                cursor=Cursor(lane.snapshot, lane.skip),
                count=lane.count,
                branch=self._branch,
                lane=self._number(lane),
            )
            for lane in self._live
        ]

    def _number(self, lane: _Lane) -> int:
        return self._branch * len(self._lanes) + lane.shard

    def run(self) -> Iterator[Any]:
        self._consumer = threading.get_ident()
        provider = self._merges.provider()
        while True:
            with self._lock:
                self._consumer = threading.get_ident()
                self._settle()
                block = self._block = self._next_block(provider)
                self._size = len(block)
            if not block:
                return
            pop = block.pop
            while block:
                yield pop()

    def _settle(self) -> None:
        """The block has been handed out: let the lanes stand behind it."""
        if self._size:
            shares, self._size = self._shares(self._size), 0
            for lane, items, in_block in shares:
                lane.snapshot, lane.skip, lane.count = lane.behind(items, in_block)
                self._turn += items
            self._turn %= len(self._live)

    def _next_block(self, provider: ShardProvider) -> list[Any]:
        """Items that are at hand, in order and reversed; if there are none, of the chunk that is pulled for that."""
        while self._live:
            first = self._live[self._turn]
            if first.rest.items:
                return self._cut_block()
            if first.rest.error is not None:
                try:
                    raise first.rest.error
                finally:
                    first.rest.error = None  # its traceback leads to this frame, and to items in shared memory
            if first.rest.ended:
                del self._live[self._turn]
                self._turn = self._turn % len(self._live) if self._live else 0
            else:
                first.rest = provider.pull(self._number(first))
        return []

    def _cut_block(self) -> list[Any]:
        rotation = self._live[self._turn :] + self._live[: self._turn]
        ready = [len(lane.rest.items) for lane in rotation]
        rounds = min(ready)
        # Full rounds, and of one more round as many as come before the first lane that has nothing left
        extra = next(place for place, items in enumerate(ready) if items == rounds)
        shares = [rounds + (place < extra) for place in range(len(rotation))]
        block: list[Any] = [None] * sum(shares)
        for place, (lane, share) in enumerate(zip(rotation, shares)):
            items = lane.rest.items
            if share == len(items):
                block[place :: len(rotation)] = items
                lane.rest.items = []
            else:
                block[place :: len(rotation)] = items[:share]
                del items[:share]
            lane.ends_chunk = not lane.rest.items
        block.reverse()
        return block

    def interrupt(self) -> None:
        self._merges.interrupt()

    def close(self) -> None:
        with self._lock:  # whoever fetches items in another thread has been interrupted
            try:
                super().close()
            except ValueError:  # and is just about to find that out
                pass
            self._merges.leave(self)
