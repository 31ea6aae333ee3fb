"""What everything that observes reads: a loader's figures, and each of its events once. Runs in the user's process."""

from __future__ import annotations

from typing import Protocol

from torchpipe.stats import Event, LoaderStats

__all__ = ["NewEvents", "Source"]


class Source(Protocol):
    """A loader, or what knows its figures."""

    def stats(self) -> LoaderStats: ...


class NewEvents:
    """Each event once. The first call of :meth:`of` returns all that there are."""

    def __init__(self) -> None:
        self._seen: frozenset[Event] = frozenset()

    def of(self, stats: LoaderStats) -> list[Event]:
        """Those of ``stats`` that the figures before did not have. What a log has forgotten does not come again."""
        new = [event for event in stats.events if event not in self._seen]
        self._seen = frozenset(stats.events)
        return new
