"""How many processes should host the shards: decided from what an interval was like. Pure: no I/O, no clock.

Up, as long as the consumer waits, the workers are at work, and the budget allows it; a step that brought nothing is
taken back, and is the limit from then on. Down to what is needed, where the consumer hardly waits, but never to a
number with which it has waited: the choice comes to rest. Where it waits although workers wait for it in turn, they may
run further ahead instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torchpipe.stats import Budget
from torchpipe.stats.text import format_bytes

__all__ = ["Choice", "Interval", "Tuner"]

_WAITS = 0.05  # a consumer that waits less does not wait
_BUSY = 0.7  # a worker that is at work more than that could not do much more
_GAIN = 1.05  # what a step up has to bring
_SPARE = 1.15  # of what is needed, so that no more than a little waiting comes of it
_MOST_WINDOW = 64


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What happened in ``seconds``: the parts of the time that the consumer waited, and that workers (on average) were
    at work and waited for it; how many cores a worker and this process used; bytes of memory of the largest worker.
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

    def choose(self, now: Choice, seen: Interval) -> Choice:
        """What to go on with: ``now`` itself where all is well."""
        rate = seen.items / seen.seconds
        before, self._before = self._before, None
        by_memory = max(1, self._memory_bytes // max(1, seen.memory_bytes))
        if by_memory < now.workers:
            self._most = self._least = by_memory
            return Choice(by_memory, now.window, f"the largest of them has {format_bytes(seen.memory_bytes)}")
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
        workers = max(now.workers, min(wanted, 2 * now.workers, by_memory, by_cores, self._most))
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
        """May workers hold twice as much?"""
        return 2 * now.workers * seen.memory_bytes <= self._memory_bytes
