"""The number of workers that host the shards, and the window of each: measured, and decided. Runs in the main process.

:class:`Tuner` decides from what an interval was like. :class:`Autotune` measures intervals while chunks are pulled.

Up, as long as the consumer waits, the workers are at work, and the budget allows it; a step that brought nothing is
taken back, and is the limit from then on. Down to what is needed, where the consumer hardly waits, but never to a
number with which it has waited: the choice comes to rest. Where it waits although workers wait for it in turn, they may
run further ahead instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from reading_services.engine.policy import Change, Hosting, Policy, Rest
from reading_services.engine.workers import WorkerCounters
from torchpipe.machine import Budget, format_bytes
from torchpipe.stats.sheet import AWAITING_CREDIT, MAKING, SENDING

__all__ = ["Autotune", "Choice", "Interval", "Tuner"]

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
