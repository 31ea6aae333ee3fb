"""A clock for whoever takes items from a stream: how long it waited for them, and when. Runs in the consumer's process.

It is told of a block of items at a time, so that an item costs nothing. One thread writes; any thread may read.
"""

from __future__ import annotations

import time

from torchpipe.machine import machine_busy_s
from torchpipe.stats.model import ConsumerStats, Moment

__all__ = ["Clock"]

_EVERY_S = 0.25  # between two moments of the timeline, at first
_MOST_MOMENTS = 240


class Clock:
    """Begins when it is made. ``waits_since`` is not 0 while a wait is under way.

    What the loop does with an item counts when it asks for the next one: it may have been left meanwhile.
    """

    def __init__(self) -> None:
        self.began_at = time.time()
        self.begun = time.perf_counter()
        self._cpu_before_s, self._cpu_s = time.process_time(), 0.0
        self._busy_before_s, self._busy_s = machine_busy_s(), 0.0
        self.first = 0.0  # when the first item was there
        self.ended = 0.0
        self._last = self.begun  # when a wait began or ended
        self._span_s = 0.0
        self.wait_s = 0.0  # since the first item
        self.waits_since = 0.0
        self.items = 0  # that have come, those not handed out yet included
        self.moments: list[tuple[float, int, float]] = []
        self._every_s, self._next_s = _EVERY_S, self.begun + _EVERY_S

    def begin_wait(self) -> None:
        self.waits_since = self._last = time.perf_counter()

    def end_wait(self, items: int) -> None:
        """The wait has brought ``items``."""
        now = self._last = time.perf_counter()
        self.items += items
        if self.first:
            self.wait_s += now - self.waits_since
        elif items:
            self.first = now
        self.waits_since = 0.0
        if now >= self._next_s:
            self._note(now)

    def _note(self, now: float) -> None:
        self.moments.append((now - self.begun, self.items, self.wait_s))
        if len(self.moments) >= _MOST_MOMENTS:  # a long epoch: every second one is enough
            self.moments = self.moments[1::2]
            self._every_s *= 2
        self._next_s = now + self._every_s

    def close(self) -> None:
        """Nothing more is taken. Idempotent."""
        if not self.ended:
            now = time.perf_counter()
            self.ended = now if self.waits_since else self._last
            self._span_s = now - self.begun
            self._cpu_s = time.process_time() - self._cpu_before_s
            self._busy_s = machine_busy_s() - self._busy_before_s
            self.waits_since = 0.0

    def cpu_s(self) -> float:
        """CPU seconds of this process since the clock was made."""
        return self._cpu_s if self.ended else time.process_time() - self._cpu_before_s

    def busy_s(self) -> float:
        """CPU seconds of all processes of the machine since the clock was made; 0 where the system does not tell."""
        return self._busy_s if self.ended else machine_busy_s() - self._busy_before_s

    def span_s(self) -> float:
        """Seconds since the clock was made, those after the loop was left included."""
        return self._span_s if self.ended else time.perf_counter() - self.begun

    def waited_s(self) -> float:
        """Since the first item, the wait that is under way included."""
        since = self.waits_since
        return self.wait_s + (time.perf_counter() - since if since and self.first else 0.0)

    def consumer(self, items: int) -> ConsumerStats:
        """The figures, where ``items`` have been handed out."""
        waited_s, now = self.waited_s(), self.ended or self._now(items)
        if not self.first:
            return ConsumerStats(items=items)
        return ConsumerStats(
            items=items,
            elapsed_s=now - self.first,
            wait_s=min(waited_s, now - self.first),
            start_s=self.first - self.begun,
        )

    def _now(self, items: int) -> float:
        """Up to when it is known what the loop did: it waits, or is in the midst of what came at once, or took all."""
        return time.perf_counter() if self.waits_since or items < self.items else self._last

    def timeline(self) -> tuple[Moment, ...]:
        return tuple(Moment(at_s=at, items=items, wait_s=wait) for at, items, wait in list(self.moments))
