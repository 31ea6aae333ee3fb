"""The sources of all that observes: a loader's figures, and each of its events once. Runs in the user's process."""

from __future__ import annotations

from typing import Protocol

from torchpipe.stats.model import Event, LoaderStats

__all__ = ["NewEvents", "Source", "check_seconds"]


class Source(Protocol):
    """A loader, or what knows its figures."""

    def stats(self) -> LoaderStats: ...


class NewEvents:
    """Each event once. The first call of :meth:`of` returns all that there are."""

    def __init__(self) -> None:
        self._seen: frozenset[Event] = frozenset()

    def of(self, stats: LoaderStats) -> list[Event]:
        """The events of ``stats`` that earlier figures did not have. One that a log has forgotten stays away."""
        new = [event for event in stats.events if event not in self._seen]
        self._seen = frozenset(stats.events)
        return new


def check_seconds(every_s: float) -> None:
    """Raises: TypeError, ValueError for what is no time between two looks."""
    if isinstance(every_s, bool) or not isinstance(every_s, int | float):
        raise TypeError(f"every_s must be a number of seconds, got {every_s!r}")
    if not 0.001 <= every_s <= 3600:
        raise ValueError(f"every_s must be 0.001 to 3600 seconds, got {every_s!r}")
