"""The decision after a worker has ended: open it anew, when, or give up. Decisions alone: no I/O, no clock. Runs in the
main process.

The rule:

- A death while an item was being made is charged to that item. Items that were begun together are made one by one from
  then on, so that the next death says which it is. ``max_deaths`` at one item name it: it is an error in its place.
- A death of a worker's own doing (an exit, a crash) while it made nothing is charged to its start, in the same way.
- A death from outside (SIGKILL, a node that is gone) while it made nothing is an accident, however often it happens.
- A worker that dies again where it got nowhere rests before the next start: not at first, then 0.1 s, 0.2 s ... 3 s.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from reading_services.engine.workers import End

__all__ = ["Decision", "Plan", "Recovery", "restart_delay_s"]

_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 3.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """``deaths`` is how many have been charged to the same item or start; 0 if this one is charged to none.

    If it is not given up, the worker is opened anew after ``delay_s``, where any more may be.
    """

    deaths: int
    give_up: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A worker that has ended is opened again at ``start_at``; with ``all_anew``, the others begin anew with it."""

    start_at: float
    all_anew: bool


class Recovery:
    """The deaths of one epoch, and what they mean."""

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._charged: dict[Hashable, list[range]] = {}
        self._stuck: dict[int, tuple[Hashable, int]] = {}  # number -> (its progress, deaths since it got there)
        self._isolated: set[int] = set()

    def begin_epoch(self) -> None:
        """Positions mean something else from now on."""
        self._charged.clear()
        self._stuck.clear()
        self._isolated.clear()

    def isolate_items(self, number: int) -> bool:
        """True if the worker, which begins now, is to make each item alone, and to note the node at work."""
        isolated = number in self._isolated
        self._isolated.discard(number)
        return isolated

    def record(self, number: int, end: End, progress: Hashable, *, dispatcher: bool) -> Decision:
        """Note the end of a worker that is needed. ``progress``: how far its part of the stream has come."""
        before, stuck = self._stuck.get(number, (progress, 0))
        stuck = stuck + 1 if before == progress else 1
        self._stuck[number] = progress, stuck
        delay_s = restart_delay_s(stuck)
        if not end.begun and not end.own:
            return Decision(deaths=0, delay_s=delay_s)
        charge = (dispatcher, end.lane) if end.begun else (number, end.lane, progress)
        charged = self._charged.setdefault(charge, [])
        items = end.items if end.begun else range(1)
        charged.append(items)
        deaths = sum(_overlap(other, items) for other in charged)
        if dispatcher and end.begun:  # those where it got no further, and nobody knows what it was at
            deaths += len(self._charged.get((number, -1, progress), ()))
        if deaths >= self._max_deaths - 1:
            self._isolated.add(number)
        return Decision(deaths=deaths, give_up=deaths >= self._max_deaths, delay_s=delay_s)


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def restart_delay_s(deaths: int) -> float:
    """The wait, in seconds, before a worker starts again that has died ``deaths`` times where it got nowhere.

    The cause (memory that runs out, a disk that is away) gets time to pass.
    """
    return 0.0 if deaths <= 1 else min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 2, 30))
