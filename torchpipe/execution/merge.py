"""The merge: takes from the shards in strict rotation and remembers, by a cursor for each shard, what was handed out.

Where order does not matter (torch's ``in_order=False``), it takes from whichever shard has something first.

Runs in the consumer's process. It decides the order; who produces the items, and where, is behind
:class:`ShardProvider`.

Each branch that the main section reads has a merge of its own. A *lane* is one shard of one branch; lane
``branch * num_shards + shard``. All lanes of an epoch have one provider, which starts when the first item is wanted.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torchpipe.errors import StateError
from torchpipe.execution.shard import Chunk
from torchpipe.node.announce import announce_replays
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe
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

    def pull_any(self, lanes: Sequence[int]) -> tuple[int, Chunk]:
        """(a lane, its next chunk) of whichever of ``lanes`` has one first, as :meth:`pull`."""
        return lanes[0], self.pull(lanes[0])

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


_Place: TypeAlias = tuple[bytes | None, int, int]  # a snapshot, the items to drop after it, the items before all


@dataclass(frozen=True, slots=True)
class _Position:
    """Where the merge stands: before a block, after the items that have been popped from it.

    One object, so that an interrupt leaves either the one before or the one after, whole.
    """

    places: list[_Place]  # of each shard, before the block
    live: list[int]  # the shards in rotation
    turn: int = 0  # whose item is the first of the block, as a place among the live ones
    block: list[Any] = field(default_factory=list)  # the last one is the next to be handed out
    size: int = 0  # of the block, when it was full
    ends: list[bytes | None] = field(default_factory=list)  # of each live shard, the snapshot after its last item here
    alone: bool = False  # all of the block is of the shard whose turn it is

    @property
    def taken(self) -> int:
        """The number of items of the block that have been handed out."""
        return self.size - len(self.block)

    def after(self, taken: int) -> tuple[list[_Place], int]:
        """The places of all shards and the turn after the first ``taken`` items of the block."""
        places, live = list(self.places), len(self.live)
        sharing = 1 if self.alone else live
        for number in range(min(sharing, taken)):
            among = (self.turn + number) % live
            items, in_block = -(-(taken - number) // sharing), -(-(self.size - number) // sharing)
            shard, end = self.live[among], self.ends[among]
            snapshot, skip, count = places[shard]
            last = items == in_block and end is not None
            places[shard] = (end, 0, count + items) if last else (snapshot, skip + items, count + items)
        turns = min(1, taken) if self.alone else taken
        return places, (self.turn + turns) % live if live else 0


class MergeIterator(NodeIterator[Any]):
    """One item from each shard in turn; a shard that has ended leaves the rotation. Without ``in_order``, as they come.

    Items are put in order a block at a time, of what is at hand, and popped from its end; how many are left tells the
    position, so that handing out one costs nothing more. State: the rotation, and for each shard a cursor and the
    number of its items handed out. Reading it asks nobody; another thread may do so, and waits while a block is made.
    """

    exact_after_error = True  # counts an item as it hands it out

    def __init__(
        self,
        node: DataPipe,
        context: Context,
        num_shards: int,
        merges: Merges,
        branch: int = 0,
        *,
        in_order: bool = True,
    ) -> None:
        super().__init__(node, context)
        self._branch = branch
        self._in_order = in_order
        self._merges = merges
        self._position = _Position([(None, 0, 0)] * num_shards, list(range(num_shards)))
        self._rests = [Chunk() for _ in range(num_shards)]  # what is at hand of each shard, and in no block
        self._between = True  # no block is being made, nor was that interrupted
        self._lock = threading.RLock()
        self._consumer = 0  # the thread that has asked for the block
        merges.join(self)

    @property
    def delivered(self) -> int:
        """The number of items handed out in this epoch, those before a restore included."""
        position = self._position
        return sum(count for _, _, count in position.places) + position.taken

    @property
    def exhausted(self) -> bool:
        """Is it known already that no item follows? False says nothing: shards may not have told yet."""
        with self._lock:
            rests = [self._rests[shard] for shard in self._position.live]
            nothing = not self._position.block and self._between
            return nothing and all(rest.ended and rest.error is None and not rest.items for rest in rests)

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return super().state_dict()

    @property
    def running(self) -> int:
        """The thread that is inside a ``next`` just now; 0 if there is none."""
        return self._consumer if getattr(self._stream, "gi_running", False) else 0

    def get_state(self) -> dict[str, Any]:
        position = self._position
        places, turn = position.after(position.taken)
        return {
            "live": list(position.live),
            "turn": turn,
            "counts": [count for _, _, count in places],
            "shards": [Cursor(*place).to_state() for place in places],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        cursors = [Cursor.from_state(item) for item in state["shards"]]
        if len(cursors) != len(self._rests):
            raise StateError(f"the state has {len(cursors)} shards, this loader {len(self._rests)}")
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
                f"the state is damaged: of {len(cursors)} shards {live!r} go on, beginning with place {turn!r}, after "
                f"{counts!r} items. Use an older checkpoint"
            )
        announce_replays(zip(known, counts))
        self._position = _Position([(item.snapshot, item.skip, item.count) for item in known], live, turn)

    def positions(self) -> list[ShardPosition]:
        """Where the shards that go on have to start. Only before the first item."""
        at = self._position
        return [
            ShardPosition(
                shard=shard, cursor=Cursor(snapshot, skip), count=count, branch=self._branch, lane=self._lane(shard)
            )
            for shard, (snapshot, skip, count) in ((shard, at.places[shard]) for shard in at.live)
        ]

    def _lane(self, shard: int) -> int:
        return self._branch * len(self._rests) + shard

    def run(self) -> Iterator[Any]:
        self._consumer = threading.get_ident()
        provider = self._merges.provider()
        while True:
            with self._lock:
                self._consumer = threading.get_ident()
                self._between = False
                position = self._next_position(provider)
                self._position = position  # until here, the state is that after the block before
                self._between = True
            block = position.block
            if not block:
                return
            pop = block.pop
            while block:
                yield pop()

    def _next_position(self, provider: ShardProvider) -> _Position:
        """After the block, with a new one of what is at hand; if nothing is, of the chunk that is pulled for it."""
        places, turn = self._position.after(self._position.size)
        live = list(self._position.live)
        while live:
            if not self._in_order:
                turn = self._at_hand(live, turn)
            rest = self._rests[live[turn]]
            if rest.items:
                return self._with_block(places, live, turn) if self._in_order else self._of_one(places, live, turn)
            if rest.error is not None:
                try:
                    raise rest.error
                finally:
                    rest.error = None  # its traceback leads to this frame, and to items in shared memory
            if rest.ended:
                del live[turn]
                turn = turn % len(live) if live else 0
            else:
                wanted = [live[turn]] if self._in_order else live[turn:] + live[:turn]
                lane, chunk = provider.pull_any([self._lane(shard) for shard in wanted])
                self._rests[lane - self._lane(0)] = chunk
        return _Position(places, live)

    def _at_hand(self, live: list[int], turn: int) -> int:
        """Whose turn it is where order does not matter: from ``turn`` on, the first that has anything to say."""
        for among in range(turn, turn + len(live)):
            rest = self._rests[live[among % len(live)]]
            if rest.items or rest.ended or rest.error is not None:
                return among % len(live)
        return turn

    def _of_one(self, places: list[_Place], live: list[int], turn: int) -> _Position:
        """The position before a block of all that is at hand of the shard whose turn it is, reversed."""
        rest = self._rests[live[turn]]
        block, rest.items = rest.items[::-1], []
        ends = [rest.snapshot if among == turn else None for among in range(len(live))]
        return _Position(places, live, turn, block, len(block), ends, alone=True)

    def _with_block(self, places: list[_Place], live: list[int], turn: int) -> _Position:
        """The position before a block of what is at hand, in order and reversed."""
        rotation = [self._rests[shard] for shard in live[turn:] + live[:turn]]
        ready = [len(rest.items) for rest in rotation]
        rounds = min(ready)
        # Full rounds, and of one more round as many as come before the first shard that has nothing left
        extra = next(place for place, items in enumerate(ready) if items == rounds)
        block: list[Any] = [None] * (rounds * len(live) + extra)
        for place, rest in enumerate(rotation):
            share = rounds + (place < extra)
            if share == len(rest.items):
                block[place :: len(live)] = rest.items
                rest.items = []
            else:
                block[place :: len(live)] = rest.items[:share]
                del rest.items[:share]
        block.reverse()
        ends = [None if rest.items else rest.snapshot for rest in (self._rests[shard] for shard in live)]
        return _Position(places, live, turn, block, len(block), ends)

    def interrupt(self) -> None:
        self._merges.interrupt()

    def close(self) -> None:
        with self._lock:  # whoever fetches items in another thread has been interrupted
            try:
                super().close()
            except ValueError:  # and is just about to find that out
                pass
            self._merges.leave(self)
