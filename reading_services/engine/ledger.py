"""The record of each lane: items arrived, items used, the position of a restart. Pure data, in the main process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from reading_services.engine.messages import Report, ShardStart
from reading_services.engine.workers import Arrival
from torchpipe.state import Cursor

__all__ = ["LaneEntries", "ShardLedger"]


@dataclass(slots=True)
class LaneEntries:
    """The entries dealt to a lane, one for each item, as far as they may have to be dealt again.

    ``stateless``: an item depends on its entry alone, so that nothing before it is ever needed.
    """

    stateless: bool
    waiting: deque[bytes] = field(default_factory=deque)
    first: int = 0  # the number of the first entry that is kept
    over: bool = False

    @classmethod
    def begin(cls, cursor: Cursor, stateless: bool, again: Iterable[bytes] = ()) -> LaneEntries:
        """``again``: what ``cursor`` skips."""
        return cls(stateless, deque(again), cursor.count - cursor.skip)

    def forget(self, before: int) -> None:
        """Entries before number ``before`` are not needed any more."""
        for _ in range(min(before - self.first, len(self.waiting))):
            self.waiting.popleft()
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
    snapshot_first: bool = False  # until the first of them have arrived
    over: bool = False  # its end or its error has arrived
    arrived: deque[Arrival] = field(default_factory=deque)
    since: int = 0  # the generation in which it began where it is
    reports: list[Report] = field(default_factory=list)  # for the user, with the chunk that comes next
    in_use: bool = False  # True while the consumer has a chunk in hand
    isolate_before: int = 0  # items before this one are each made alone: one of them may have ended its worker
    entries: LaneEntries | None = None  # where entries are dealt
    first: int = field(init=False)  # ``count`` when the epoch began here
    chunks: int = 0  # that have come since, with ``nbytes`` in all
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.first = self.count

    @property
    def count(self) -> int:
        """Items of the shard that have arrived, in this epoch or before."""
        return self.cursor.count

    def arrive(self, arrival: Arrival) -> None:
        """Something has come; after the shard's end or error, nothing counts any more."""
        if self.over:
            return
        self.chunks += 1
        self.nbytes += arrival.nbytes
        if self.entries is None or not self.entries.stateless:
            self.cursor = self.cursor.after(arrival.count, None if arrival.ended else arrival.snapshot)
        else:
            self.cursor = replace(self.cursor, count=self.count + arrival.count)
        if self.entries is not None:
            self.entries.forget(self.count - self.cursor.skip)
        self.over = arrival.over
        self.arrived.append(arrival)

    def deal(self, entries: list[bytes], over: bool) -> None:
        """More is dealt to this lane; ``over``: nothing after that."""
        assert self.entries is not None, "nothing is dealt in this epoch"
        self.entries.waiting.extend(entries)
        self.entries.over = over

    @property
    def outstanding(self) -> int:
        """The number of entries dealt whose items have not arrived."""
        entries = self.entries
        return 0 if entries is None else entries.first + len(entries.waiting) - self.count

    def release(self) -> int:
        """The consumer asks for more, so it has used up its chunk: the number of chunks to grant anew."""
        used, self.in_use = self.in_use, False
        return 0 if self.over else int(used)

    def take(self) -> Arrival | None:
        """The next chunk for the consumer, or None if it has to wait."""
        if not self.arrived:
            return None
        self.in_use = True
        return self.arrived.popleft()

    def restart(self) -> ShardStart:
        """The start of this shard in a new worker: after the last item that has arrived, with the window's rest."""
        self.reports.clear()
        return ShardStart(
            lane=self.lane,
            branch=self.branch,
            shard=self.shard,
            cursor=self.cursor,
            snapshot_first=self.snapshot_first and self.count == self.first,
            held=min(self.window, self.in_use + len(self.arrived)),
            isolate_before=self.isolate_before,
        )
