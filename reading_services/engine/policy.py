"""A policy says, before something is pulled, how many workers host the shards, and which hosts which.

The supervisor asks, under its lock, and does it. A policy decides from what it sees in :class:`Hosting`, and does
nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from reading_services.engine.workers import WorkerCounters
from torchpipe.execution.limits import WorkerLimits

__all__ = ["Change", "Hosting", "Policy", "Rest"]


class Hosting(Protocol):
    """The supervisor as a policy sees it."""

    @property
    def num_workers(self) -> int: ...
    @property
    def limits(self) -> WorkerLimits: ...
    @property
    def all_ready(self) -> bool:
        """True if every worker can begin."""

    def hosts(self, *, all_shards: bool = False) -> dict[int, int]:
        """shard -> the worker that hosts it, of the shards that go on, or of all in this epoch."""

    def ready(self) -> set[int]:
        """The numbers of the workers that host shards and can begin."""

    def counters(self) -> dict[int, WorkerCounters]:
        """The counters so far of each worker that hosts shards, by number."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """So many workers, so far ahead of the consumer, these hosts of shards; None: as it is. ``why``, in words."""

    workers: int | None = None
    window: int | None = None
    hosts: Mapping[int, int] | None = None
    why: str


class Rest:
    """The time for which a policy leaves a step alone: ``first_s``, twice as long each time, ``most_s`` at most."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._next_s, self._most_s, self.until = first_s, most_s, 0.0

    def begin(self, now: float) -> None:
        self.until = now + self._next_s
        self._next_s = min(self._most_s, 2 * self._next_s)

    def is_over(self, now: float) -> bool:
        """True also if none has begun."""
        return now >= self.until


class Policy:
    """Decides nothing: what every policy has."""

    def first_workers(self, most: int) -> int:
        """With how many of at most ``most`` workers to begin."""
        return most

    def fewest_workers(self, most: int) -> int:
        """The number that the user has asked for. More are this policy's wish: those without room are let go of."""
        return most

    def refused(self, workers: int, now: float) -> None:
        """There is room for no more than so many workers just now."""

    def begin_epoch(self, hosting: Hosting, now: float) -> Change | None:
        """Before any shard of the next epoch begins."""
        return None

    def before_pull(self, hosting: Hosting, now: float, late: Collection[int]) -> Change | None:
        """Asked before each pull, and about once a second while nothing comes. Workers of these numbers are late: what
        they still host after this is an error.
        """
        return None

    def pulled(self, items: int, waited_s: float) -> None:
        """So many items have been pulled, in so many seconds. Any thread."""
