"""The policies of a service's workers: how many host the shards, how far each runs ahead, and which hosts which shard.

Runs in the main process.

**The number of workers**, and the window of each, is measured and decided. :class:`Tuner` decides from what an interval
was like. :class:`Autotune` measures intervals while chunks are pulled.

Up, as long as the consumer waits, the workers are at work, and the budget allows it; a step that brought nothing is
taken back, and is the limit from then on. Down to what is needed, where the consumer hardly waits, but never to a
number with which it has waited: the choice comes to rest. Where it waits although workers wait for it in turn, they may
run further ahead instead.

**The division of shards** goes by the speed of each worker, and whether it has started at all. The stream takes from
the shards in turn, so it is as fast as the slowest shard. Shards that a slow worker hosts beside others are moved to
faster ones; those of a worker that has not started (its resources are in use, its node is gone) to those that have, and
back when it has. Shards that move begin anew at their cursors (where items are dispatched, all do), so it is done only
where it brings much.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from reading_services.engine.policy import Change, Hosting, Policy, Rest
from reading_services.engine.workers import WorkerCounters
from torchpipe.machine import Budget, format_bytes
from torchpipe.stats.sheet import AWAITING_CREDIT, MAKING, SENDING

__all__ = ["Autotune", "Balancer", "Choice", "Interval", "Tuner", "apportion", "moved", "policies"]

_INTERVAL_S = 1.0
_LEAST_CHUNKS = 8  # in an interval

_WAITS = 0.05  # a consumer that waits less does not wait
_BUSY = 0.7  # a worker that is at work more than that could not do much more
_GAIN = 1.05  # what a step up has to bring
_SPARE = 1.15  # of what is needed, so that no more than a little waiting comes of it
_MOST_WINDOW = 64
_REST_S, _MOST_REST_S = 60.0, 1800.0  # after more workers found no room, twice as long each time


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The measurements of ``seconds``: the parts of the time that the consumer waited, and that workers (on average)
    were at work and waited for it; the cores that a worker and this process used; the largest worker's bytes of memory.
    """

    seconds: float
    items: int
    waited: float
    busy: float
    held_back: float
    worker_cores: float
    own_cores: float
    memory_bytes: int


@dataclass(frozen=True)
class Choice:
    """``workers`` processes, each ``window`` messages a shard ahead of the consumer; ``why``, in words."""

    workers: int
    window: int
    why: str = ""


class Tuner:
    """``most`` processes can be of use. ``choose`` is called after each interval with what is chosen now."""

    def __init__(self, budget: Budget, most: int) -> None:
        self._cores = budget.cores or 1.0
        self._memory_bytes = budget.memory_bytes or 1 << 62
        self._most = most
        self._least = 1  # with fewer, the consumer has waited
        self._before: tuple[Choice, float] | None = None  # the choice before a step up, and its rate

    def refused(self) -> None:
        """The last step up was not made."""
        self._before = None

    def choose(self, now: Choice, seen: Interval, room: int | None = None) -> Choice:
        """The choice to go on with: ``now`` where all is well. ``room``: more processes cannot be had just now."""
        rate = seen.items / seen.seconds
        before, self._before = self._before, None
        by_memory = max(1, self._memory_bytes // max(1, seen.memory_bytes))
        if by_memory < now.workers:
            self._most = self._least = by_memory
            return Choice(
                by_memory, now.window, f"the largest worker takes {format_bytes(seen.memory_bytes)} of memory"
            )
        if before is not None and rate < _GAIN * before[1]:
            self._most = self._least = min(self._most, before[0].workers)
            return replace(before[0], why=f"{now.workers} workers bring no more than {before[0].workers}")
        if seen.waited < _WAITS:
            return self._fewer(now, seen)
        if seen.busy < _BUSY:
            if seen.held_back > _WAITS and now.window < _MOST_WINDOW and self._room(now, seen):
                return Choice(now.workers, 2 * now.window, "the loop waits now and then, and so do the workers")
            return now
        wanted = math.ceil(now.workers * seen.busy * _SPARE / max(0.05, 1 - seen.waited))
        by_cores = math.ceil((self._cores - seen.own_cores) / max(0.01, seen.worker_cores))
        # No more than twice as many at once: what so many bring is measured first
        workers = max(now.workers, min(wanted, 2 * now.workers, by_memory, by_cores, self._most, room or self._most))
        if workers == now.workers:
            return now
        self._least = now.workers + 1
        self._before = (now, rate)
        return Choice(workers, now.window, f"the loop waited {100 * seen.waited:.0f} % of the time")

    def _fewer(self, now: Choice, seen: Interval) -> Choice:
        needed = max(self._least, math.ceil(now.workers * seen.busy * _SPARE))
        if needed >= now.workers:
            return now
        return Choice(needed, now.window, f"{now.workers} workers were at work {100 * seen.busy:.0f} % of the time")

    def _room(self, now: Choice, seen: Interval) -> bool:
        """True if workers may hold twice as much."""
        return 2 * now.workers * seen.memory_bytes <= self._memory_bytes


class Autotune(Policy):
    """The number of workers that is of use, within ``budget`` and ``most``."""

    def __init__(self, budget: Budget, most: int) -> None:
        self._most, self._budget = most, budget.filled()
        self._tuner = Tuner(self._budget, most)
        self._interval = _Measured(0.0)
        self._room, self._rest = most, Rest(_REST_S, _MOST_REST_S)

    def first_workers(self, most: int) -> int:
        """The number of cores, at most ``most``."""
        return max(1, min(most, int(self._budget.cores or 1)))

    def fewest_workers(self, most: int) -> int:
        return 1

    def refused(self, workers: int, now: float) -> None:
        self._tuner.refused()
        self._room = workers
        self._rest.begin(now)
        self._interval = _Measured(now)

    def begin_epoch(self, hosting: Hosting, now: float) -> Change | None:
        """Begin a new interval: earlier measurements say nothing of this epoch."""
        self._interval = _Measured(now)
        return None

    def before_pull(self, hosting: Hosting, now: float, late: Collection[int]) -> Change | None:
        measured = self._interval
        if now - measured.begun < _INTERVAL_S or measured.chunks < _LEAST_CHUNKS:
            return None
        counters, all_ready = hosting.counters(), hosting.all_ready
        seen = measured.until(now, counters)
        self._interval = _Measured(now)
        chosen = choice = Choice(hosting.num_workers, hosting.limits.window)
        if not all_ready:
            return None  # they are starting, which may take seconds
        if chosen.workers > self._room:  # there was room after all: the next refusal is a first one again
            self._room, self._rest = self._most, Rest(_REST_S, _MOST_REST_S)
        if seen is not None:
            choice = self._tuner.choose(chosen, seen, None if self._rest.is_over(now) else self._room)
        if (choice.workers, choice.window) == (chosen.workers, chosen.window):
            self._interval.counters = counters
            return None
        text = f"{choice.workers} of at most {self._most} workers, {choice.window} messages ahead: {choice.why}"
        return Change(workers=choice.workers, window=choice.window, why=text)

    def pulled(self, items: int, waited_s: float) -> None:
        measured = self._interval
        measured.waited_s += waited_s
        measured.items += items
        measured.chunks += 1


class _Measured:
    """The measurements since an interval began; without ``counters``, it is not one to go by."""

    def __init__(self, now: float) -> None:
        self.begun = now
        self.cpu_s = time.process_time()
        self.counters: dict[int, WorkerCounters] = {}
        self.waited_s = 0.0
        self.items = self.chunks = 0

    def until(self, now: float, counters: dict[int, WorkerCounters]) -> Interval | None:
        """The interval until ``now``; None if workers have come or gone, or it began without counters."""
        before, seconds = self.counters, now - self.begun
        if {number: item.pid for number, item in before.items()} != {
            number: item.pid for number, item in counters.items()
        }:
            return None
        spent = [item.since(before[number]).times for number, item in counters.items()]
        count = max(1, len(spent))

        def part(*doing: int) -> float:
            return sum(times.seconds(item) for times in spent for item in doing) / count / seconds

        return Interval(
            seconds=seconds,
            items=self.items,
            waited=min(1.0, self.waited_s / seconds),
            busy=min(1.0, part(MAKING, SENDING)),
            held_back=min(1.0, part(AWAITING_CREDIT)),
            worker_cores=sum(times.cpu_ns for times in spent) / 1e9 / count / seconds,
            own_cores=(time.process_time() - self.cpu_s) / seconds,
            memory_bytes=max((item.times.memory_bytes for item in counters.values()), default=0),
        )


_BALANCE_INTERVAL_S = 2.0
_GRACE_S = 3.0  # for a worker to start, before its shards go to others
_LEAST_BUSY_S = 0.5  # of work in an interval, for a speed to go by
_BALANCE_GAIN = 1.25  # what moving has to bring
_BALANCE_MOST_REST_S = 60.0  # after shards were moved, twice as long each time: speeds that go up and down are let be


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


class Balancer(Policy):
    """Moves shards between workers now and then."""

    def __init__(self) -> None:
        self._speeds: dict[int, float] = {}  # items a second of work
        self._pids: dict[int, int] = {}
        self._rest = Rest(_BALANCE_INTERVAL_S, _BALANCE_MOST_REST_S)
        self._looked_at = self._unready_since = 0.0
        self._counters: dict[int, WorkerCounters] = {}

    def begin_epoch(self, hosting: Hosting, now: float) -> Change | None:
        """Forget the counters of the epoch before; speeds stay. Nothing has begun: moves are free."""
        self._looked_at = self._unready_since = now
        self._counters = {}
        hosts, ready = hosting.hosts(all_shards=True), hosting.ready()
        return self._faster(hosts, ready) if ready.issuperset(hosts.values()) else None

    def before_pull(self, hosting: Hosting, now: float, late: Collection[int]) -> Change | None:
        if now - self._looked_at < _BALANCE_INTERVAL_S and not late:
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
        return change if gain >= _BALANCE_GAIN else None

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


def policies(budget: Budget | None, most: int, *, balance: bool = False) -> list[Policy]:
    """With ``budget``, as many of at most ``most`` as are of use. ``balance``: shards are moved between them."""
    tuning: list[Policy] = [] if budget is None else [Autotune(budget, most)]
    return [*tuning, Balancer()] if balance else tuning
