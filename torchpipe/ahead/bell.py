"""Waking a thread that waits, without a lock that an interrupt could leave taken. Runs in any process."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue

__all__ = ["Bell"]


class Bell:
    """Wakes who waits. Any thread and signal handlers may notify it, one thread hears it: no lock is held meanwhile."""

    def __init__(self) -> None:
        self.awaited = False  # said first; then who waits looks once more whether it has to
        self._signals: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        if self.awaited:
            self._signals.put(None)

    def hear(self, at_most_s: float) -> None:
        """Wait to be notified, perhaps by what came before."""
        with suppress(Empty):
            self._signals.get(timeout=at_most_s)
