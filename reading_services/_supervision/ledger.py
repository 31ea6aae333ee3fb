"""What the main process knows of each shard: what has arrived, what was used, where a restart must begin. Pure data.

Runs in the main process, in the consumer's thread. No I/O: the supervisor reads decisions here and carries them out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from reading_services._supervision.arrivals import Arrival
from reading_services._transport.messages import ShardStart
from torchpipe.execution.provider import ShardPosition
from torchpipe.state import Cursor

__all__ = ["Hand", "ShardLedger"]


@dataclass(slots=True)
class Hand:
    """What the main process has dealt to a lane, an entry for each item, as far as it may have to be dealt again.

    ``stateless``: an item depends on its entry alone, so that nothing before it is ever needed.
    """

    stateless: bool
    entries: deque[bytes] = field(default_factory=deque)
    first: int = 0  # the number of the first entry that is kept
    over: bool = False

    @classmethod
    def begin(cls, position: ShardPosition, stateless: bool, again: Iterable[bytes] = ()) -> Hand:
        """``again``: what the position's cursor skips."""
        return cls(stateless, deque(again), position.count - position.cursor.skip)

    def forget(self, before: int) -> None:
        """Entries before number ``before`` are not needed any more."""
        for _ in range(min(before - self.first, len(self.entries))):
            self.entries.popleft()
            self.first += 1


@dataclass(slots=True)
class ShardLedger:
    """One lane, a shard of a branch, in one epoch.

    At most ``window`` chunks are on their way, waiting for the consumer, or in its hands.
    """

    lane: int
    branch: int
    shard: int
    window: int
    cursor: Cursor  # after the last item that arrived
    count: int  # items of the shard before that point
    over: bool = False  # its end or its error has arrived
    ready: deque[Arrival] = field(default_factory=deque)
    in_use: bool = False  # has the consumer a chunk in hand?
    doubtful: int = 0  # one of the items before this one may have killed its process
    hand: Hand | None = None  # where the main process deals
    first: int = 0  # ``count`` when the epoch began here
    chunks: int = 0  # that have come since, with ``nbytes`` in all
    nbytes: int = 0

    @classmethod
    def begin(cls, position: ShardPosition, window: int, hand: Hand | None = None) -> ShardLedger:
        return cls(**vars(position), window=window, hand=hand, first=position.count)

    def arrive(self, arrival: Arrival) -> None:
        """Something has come; after the shard's end or error, nothing counts any more."""
        if self.over:
            return
        self.count += arrival.count
        self.chunks += 1
        self.nbytes += arrival.nbytes
        if self.hand is None or not self.hand.stateless:
            self.cursor = self.cursor.after(arrival.count, arrival.snapshot)
        if self.hand is not None:
            self.hand.forget(self.count - self.cursor.skip)
        self.over = arrival.over
        self.ready.append(arrival)

    def deal(self, entries: list[bytes], over: bool) -> None:
        """More is dealt to this lane; ``over``: nothing after that."""
        assert self.hand is not None, "nothing is dealt in this epoch"
        self.hand.entries.extend(entries)
        self.hand.over = over

    @property
    def outstanding(self) -> int:
        """How many entries have been dealt whose items have not arrived."""
        hand = self.hand
        return 0 if hand is None else hand.first + len(hand.entries) - self.count

    def release(self) -> int:
        """The consumer asks for more, so it has used up its chunk: the number of chunks to grant anew."""
        used, self.in_use = self.in_use, False
        return 0 if self.over else int(used)

    def take(self) -> Arrival | None:
        """The next chunk for the consumer, or None if it has to wait."""
        if not self.ready:
            return None
        self.in_use = True
        return self.ready.popleft()

    def restart(self) -> ShardStart:
        """How a new process has to go on with this shard: after what has arrived, with what is left of the window."""
        return ShardStart(
            lane=self.lane,
            branch=self.branch,
            shard=self.shard,
            snapshot=self.cursor.snapshot,
            skip=self.cursor.skip,
            count=self.count,
            held=min(self.window, self.in_use + len(self.ready)),
            doubtful=self.doubtful,
        )
