"""The division of shards among workers, by the speed of each worker, and whether it has started at all. Runs in the
main process.

The stream takes from the shards in turn, so it is as fast as the slowest shard. Shards that a slow worker hosts beside
others are moved to faster ones; those of a worker that has not started (its resources are in use, its node is gone) to
those that have, and back when it has. Shards that move begin anew at their cursors (where items are dispatched, all
do), so it is done only where it brings much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from reading_services.engine.policy import Change, Hosting, Policy, Rest
from reading_services.engine.workers import WorkerCounters
from torchpipe.stats.sheet import MAKING, SENDING

__all__ = ["Balance", "apportion", "moved"]

_INTERVAL_S = 2.0
_GRACE_S = 3.0  # for a worker to start, before its shards go to others
_LEAST_BUSY_S = 0.5  # of work in an interval, for a speed to go by
_GAIN = 1.25  # what moving has to bring
_MOST_REST_S = 60.0  # after shards were moved, twice as long each time: speeds that go up and down are let be


def apportion(shards: int, speeds: Mapping[int, float]) -> dict[int, int]:
    """The number of ``shards`` for each worker, so that the one that takes longest takes as little as possible."""
    counts = dict.fromkeys(sorted(speeds), 0)
    for _ in range(shards):
        number = min(counts, key=lambda item: (counts[item] + 1) / speeds[item])
        counts[number] += 1
    return counts


def moved(hosts: Mapping[int, int], counts: Mapping[int, int]) -> dict[int, int]:
    """``hosts`` (shard -> worker) with as few shards moved as it takes for each worker to have ``counts`` of them."""
    left = dict(counts)
    kept: dict[int, int] = {}
    for shard, number in hosts.items():
        if left.get(number, 0):
            left[number] -= 1
            kept[shard] = number
    free = [number for number, count in left.items() for _ in range(count)]
    return {shard: kept[shard] if shard in kept else free.pop() for shard in hosts}


class Balance(Policy):
    """Moves shards between workers now and then."""

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}  # items a second of work
        self._pids: dict[int, int] = {}
        self._rest = Rest(_INTERVAL_S, _MOST_REST_S)
        self._looked_at = self._unready_since = 0.0
        self._counters: dict[int, WorkerCounters] = {}

    def begin_epoch(self, hosting: Hosting, now: float) -> Change | None:
        """Forget the counters of the epoch before; speeds stay. Nothing has begun: moves are free."""
        self._looked_at = self._unready_since = now
        self._counters = {}
        hosts, ready = hosting.hosts(all_shards=True), hosting.ready()
        return self._faster(hosts, ready) if ready.issuperset(hosts.values()) else None

    def before_pull(self, hosting: Hosting, now: float, late: Collection[int]) -> Change | None:
        if now - self._looked_at < _INTERVAL_S and not late:
            return None
        counters, before = hosting.counters(), self._counters
        self._looked_at, self._counters = now, {number: item.copy() for number, item in counters.items()}
        self._measure(counters, before)
        hosts, ready = hosting.hosts(), hosting.ready()
        idle = {number for number in hosts.values() if number not in ready}
        if not idle:
            self._unready_since = now
        elif now - self._unready_since < _GRACE_S and not idle & {*late}:
            return None
        elif change := self._spread(hosts, ready):
            self._counters = {}
            return change
        if idle or not self._rest.is_over(now) or len(hosts) < 2:
            return None
        if change := self._faster(hosts, ready):
            self._rest.begin(now)
            self._counters = {}
        return change

    def _faster(self, hosts: Mapping[int, int], ready: Collection[int]) -> Change | None:
        """Other hosts of those that are ready, if they are so much faster together that it is worth a move."""
        change = self._spread(hosts, ready)
        if change is None or change.hosts is None:
            return None
        speeds = self._speeds_of(ready)
        gain = _slowest(hosts.values(), speeds) / _slowest(change.hosts.values(), speeds)
        return change if gain >= _GAIN else None

    def _spread(self, hosts: Mapping[int, int], ready: Collection[int]) -> Change | None:
        """Let those that are ready host all, by their speeds. None if they do, or if there are none."""
        if not ready:
            return None
        counts = apportion(len(hosts), self._speeds_of(ready))
        after = moved(hosts, counts)
        if after == hosts:
            return None
        text = ", ".join(f"worker {number}: {count}" for number, count in counts.items())
        return Change(hosts=after, why=f"shards of each worker: {text}")

    def _speeds_of(self, numbers: Collection[int]) -> dict[int, float]:
        """One that has not been measured is as fast as the others."""
        measured = [speed for number, speed in self._speeds.items() if number in numbers]
        usual = sum(measured) / len(measured) if measured else 1.0
        return {number: self._speeds.get(number, usual) for number in numbers}

    def _measure(self, counters: dict[int, WorkerCounters], before: dict[int, WorkerCounters]) -> None:
        for number, item in counters.items():
            if self._pids.get(number) != item.pid:
                self._pids[number] = item.pid
                self._speeds.pop(number, None)
            if number not in before or before[number].pid != item.pid:
                continue
            times = item.since(before[number]).times
            busy_s = times.seconds(MAKING) + times.seconds(SENDING)
            if busy_s >= _LEAST_BUSY_S and times.made:
                speed = times.made / busy_s
                self._speeds[number] = (self._speeds.get(number, speed) + speed) / 2


def _slowest(hosts: Collection[int], speeds: Mapping[int, float]) -> float:
    """The time that the slowest worker takes for one item of each of its shards, in seconds."""
    counts = Counter(hosts)
    return max(count / speeds[number] for number, count in counts.items())
