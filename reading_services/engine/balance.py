"""Which place hosts which shards: by how fast each place has turned out to be, and whether it has started at all.

The stream takes from the shards in turn, so it is as fast as the slowest shard. Shards that a slow place hosts beside
others are moved to faster ones; those of a place that has not started (its resources are in use, its node is gone) to
those that have, and back when it has. All shards begin anew at their cursors then, so it is done only where it brings
much.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from reading_services.engine.places import Noted
from reading_services.engine.supervisor import Supervisor
from torchpipe.execution.shard import Chunk
from torchpipe.stats.sheet import MAKING, SENDING

__all__ = ["Balance", "apportion", "moved"]

_log = logging.getLogger("torchpipe")

_INTERVAL_S = 2.0
_GRACE_S = 3.0  # for a place to start, before its shards go to others
_LEAST_BUSY_S = 0.5  # of work in an interval, for a speed to go by
_GAIN = 1.25  # what moving has to bring
_MOST_REST_S = 60.0  # after shards were moved, twice as long each time: speeds that go up and down are let be


def apportion(shards: int, speeds: Mapping[int, float]) -> dict[int, int]:
    """How many of ``shards`` each place gets, so that the one that takes longest takes as little as possible."""
    counts = dict.fromkeys(sorted(speeds), 0)
    for _ in range(shards):
        number = min(counts, key=lambda item: (counts[item] + 1) / speeds[item])
        counts[number] += 1
    return counts


def moved(hosts: Mapping[int, int], counts: Mapping[int, int]) -> dict[int, int]:
    """``hosts`` (shard -> place) with as few shards moved as it takes for each place to have ``counts`` of them."""
    left = dict(counts)
    kept: dict[int, int] = {}
    for shard, number in hosts.items():
        if left.get(number, 0):
            left[number] -= 1
            kept[shard] = number
    free = [number for number, count in left.items() for _ in range(count)]
    return {shard: kept[shard] if shard in kept else free.pop() for shard in hosts}


class Balance:
    """Pulls chunks of ``supervisor``, and moves shards between its places now and then."""

    def __init__(self, supervisor: Supervisor, clock: Callable[[], float] = time.monotonic) -> None:
        self._supervisor, self._clock = supervisor, clock
        self._speeds: dict[int, float] = {}  # items a second of work
        self._pids: dict[int, int] = {}
        self._rest_s, self._rests_until = _INTERVAL_S, 0.0
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """What was measured under way is of the epoch before; speeds stay."""
        self._begun = self._unready_since = self._clock()
        self._noted: dict[int, Noted] = {}

    def pull_any(self, lanes: Collection[int], timeout_s: float | None = None) -> tuple[int, Chunk]:
        """As the supervisor's. Where nothing comes, places are looked at all the same."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while True:
            now = self._clock()
            if now - self._begun >= _INTERVAL_S:
                self._balance(now)  # before anything is taken: if it raises, nothing is lost
            left_s = None if deadline is None else max(0.0, deadline - now)
            pulled = self._supervisor.pull_within(lanes, _INTERVAL_S, left_s)
            if pulled is not None:
                return pulled

    def _balance(self, now: float) -> None:
        supervisor = self._supervisor
        noted, before = supervisor.noted(), self._noted
        self._begun, self._noted = now, {number: item.copy() for number, item in noted.items()}
        self._measure(noted, before)
        hosts = supervisor.shards_of_places()
        ready = supervisor.ready()
        idle = {number for number in hosts.values() if number not in ready}
        if not idle:
            self._unready_since = now
        if not ready or len(hosts) < 2:
            return
        late = bool(idle) and now - self._unready_since >= _GRACE_S
        known = [speed for number, speed in self._speeds.items() if number in ready]
        usual = sum(known) / len(known) if known else 1.0
        speeds = {number: self._speeds.get(number, usual) for number in ready}
        if not late and idle:
            return
        counts = apportion(len(hosts), speeds)
        have = {number: sum(host == number for host in hosts.values()) for number in {*ready, *hosts.values()}}
        if not late:
            if now < self._rests_until or _slowest(have, speeds) < _GAIN * _slowest(counts, speeds):
                return
            self._rests_until = now + self._rest_s
            self._rest_s = min(_MOST_REST_S, 2 * self._rest_s)
        text = ", ".join(f"worker {number}: {count}" for number, count in counts.items())
        _log.info("moving shards between workers: %s", text)
        supervisor.accounts.events.tell("tuned", "main", f"shards of each worker: {text}")
        supervisor.assign(moved(hosts, counts))
        self._noted = {}

    def _measure(self, noted: dict[int, Noted], before: dict[int, Noted]) -> None:
        for number, item in noted.items():
            if self._pids.get(number) != item.pid:
                self._pids[number] = item.pid
                self._speeds.pop(number, None)
            if number not in before or before[number].pid != item.pid:
                continue
            since = item.copy()
            since.add(before[number], -1)
            busy_s = since.times.seconds(MAKING) + since.times.seconds(SENDING)
            if busy_s >= _LEAST_BUSY_S and since.times.made:
                speed = since.times.made / busy_s
                self._speeds[number] = (self._speeds.get(number, speed) + speed) / 2


def _slowest(counts: Mapping[int, int], speeds: Mapping[int, float]) -> float:
    """How long the place takes that takes longest, for one item of each shard, in seconds."""
    return max(count / speeds[number] for number, count in counts.items() if number in speeds)
