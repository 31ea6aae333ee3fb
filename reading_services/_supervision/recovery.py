"""What to do after the death of a process: start it anew, when, or give up. Decisions alone: no I/O, no clock.

Runs in the main process, in the supervisor's threads, which hands in what has happened and the time.

The rule. A death is *own* (an exit code, or a signal that a process brings on itself, such as SIGSEGV) or comes *from
outside* (SIGKILL, SIGTERM, no sign of life): out of memory looks like somebody's ``kill``.

- An own death is charged to the position that the process had begun, or to its start if it had begun none.
- One from outside is charged to the position that the process had begun, and never to a start.
- ``max_deaths`` own ones give a position up. So do as many from outside, once they cannot be chance: at twice the rate
  at which processes die elsewhere, as many deaths in the time that the position takes would have to be very unlikely.
  To find that out, a process rests before it goes on at such a position: it is alive then and has begun nothing.

In a storm of kills, processes die elsewhere as well, while they rest above all, so that no position is given up. One
that kills dies in its own time only, so that it is: in the midst of a storm if it takes about half as long to kill as
the storm does, or less, and otherwise once the storm has passed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median_high

__all__ = ["SPENT", "Death", "Decision", "Plan", "Recovery", "restart_delay_s"]

_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 3.0
_FREE_RESTARTS = 30  # in a row, though it gets nowhere: in a storm of kills, fewer processes would be killed sooner
_REST = 16  # times the time that the position takes to kill: what is needed to tell it from chance
_MAX_REST_S = 30.0
_SPREAD = 0.6180339887  # multiples of it fall evenly into [0, 1), less their whole parts
_CAREFUL_STARTS = 8  # others that die, or accidents, may let it begin anew before it gets to the place
_CHANCE = 0.01  # of giving up a position that is innocent, summed up over all accidents of a run


@dataclass(frozen=True, kw_only=True)
class Death:
    """Of process ``number``. ``place`` and ``items`` are what it was at, ``progress`` how far its part has come.

    ``begun_s`` says for how many seconds it had been making one of ``items``, which it began together; None: it had
    begun nothing, but was starting, being brought to its position, or waiting.
    """

    number: int
    own: bool
    place: Hashable
    items: range
    begun_s: float | None
    progress: Hashable


@dataclass(frozen=True, kw_only=True)
class Decision:
    """``deaths`` is how many have been charged to the same place, 0 if this one is charged to none.

    If it is not given up: start the process after ``start_s``, and let it begin ``rest_s`` later.
    ``exhausted`` says that the budget of restarts is used up.
    """

    deaths: int
    give_up: bool = False
    exhausted: bool = False
    start_s: float = 0.0
    rest_s: float = 0.0


SPENT = Decision(deaths=0, give_up=True, exhausted=True)
"""Of any death, when as many processes have been replaced as may be."""


@dataclass(frozen=True)
class Plan:
    """What is to become of a process that has died."""

    start_at: float  # in monotonic seconds, as is
    begin_at: float  # when it goes on
    all_anew: bool  # do the others have to begin anew with it?


@dataclass(slots=True)
class _Suspect:
    """What is known of a place. ``others`` and ``alive_s`` are as of its first death: what came since counts."""

    others: int
    alive_s: float
    own: list[range] = field(default_factory=list)
    outside: list[tuple[range, float]] = field(default_factory=list)


class Recovery:
    """Decides for all processes of a supervisor."""

    def __init__(self, max_deaths: int) -> None:
        self._max_deaths = max_deaths
        self._suspects: dict[Hashable, _Suspect] = {}
        self._stuck: dict[int, tuple[Hashable, int]] = {}  # number -> its progress, and deaths since it changed
        self._careful: dict[int, int] = {}  # number -> how many times more it begins with care
        self._outside = 0  # deaths from outside, wherever
        self._last_s: float | None = None  # when the last of them was
        self._gap_s = 0.0  # about how long after one the next one comes
        self._alive_s = 0.0  # of processes that have ended
        self._since: dict[int, float] = {}  # number -> when it was started

    def begin_epoch(self) -> None:
        """Positions mean something else from now on."""
        self._suspects.clear()
        self._stuck.clear()
        self._careful.clear()

    def started(self, number: int, now_s: float) -> None:
        self._since[number] = now_s

    def ended(self, number: int, now_s: float) -> None:
        """A process has ended, by a death or not. Idempotent."""
        self._alive_s += now_s - self._since.pop(number, now_s)

    def careful(self, number: int) -> bool:
        """Should the process, which begins now, note what it does? Its next death may be the one to be explained."""
        left = self._careful.get(number, 0)
        self._careful[number] = left - 1
        return left > 0

    def record(self, death: Death, now_s: float, *, spent: bool = False) -> Decision:
        """Note a death of a process that is needed: what is to be done. ``spent``: it must not be started anew."""
        self.ended(death.number, now_s)
        stuck = self._count_stuck(death)
        if not death.own:
            self._outside += 1
            self._note_gap(now_s)
        if spent:
            return SPENT
        if not death.own and death.begun_s is None:
            return Decision(deaths=0, start_s=max(self._shift_s(stuck), restart_delay_s(stuck - _FREE_RESTARTS)))
        suspect = self._charge(death, now_s)
        own = _overlapping(suspect.own, death.items)
        outside = [seconds for items, seconds in suspect.outside if _overlap(items, death.items)]
        deaths = own + len(outside)
        others = self._outside - suspect.others - len(outside)
        chance = self._chance(suspect, outside, others, now_s)
        guilty = len(outside) >= self._max_deaths and chance * (self._outside - len(outside) + 1) ** 2 < _CHANCE
        rest_s = 0.0
        if death.own:
            rest_s = restart_delay_s(deaths)
        elif len(outside) > 1 and others < len(outside):  # otherwise it is clear that this is a storm
            least_s = _FIRST_DELAY_S if others else 4 * restart_delay_s(deaths)
            rest_s = min(_MAX_REST_S, max(least_s, _REST * median_high(outside)))
        if deaths >= self._max_deaths - 1:
            self._careful[death.number] = _CAREFUL_STARTS
        starting = death.begun_s is None
        return Decision(
            deaths=deaths,
            give_up=own >= self._max_deaths or guilty,
            start_s=rest_s if starting else 0.0 if death.own else self._shift_s(stuck),
            rest_s=0.0 if starting else rest_s,
        )

    def _count_stuck(self, death: Death) -> int:
        progress, count = self._stuck.get(death.number, (death.progress, 0))
        count = count + 1 if progress == death.progress else 1
        self._stuck[death.number] = death.progress, count
        return count

    def _note_gap(self, now_s: float) -> None:
        gap_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s, self._gap_s = now_s, gap_s if not self._gap_s else 0.8 * self._gap_s + 0.2 * gap_s

    def _shift_s(self, stuck: int) -> float:
        """How long to put off the start of a process that gets nowhere: another time at each death.

        A storm of regular kills would otherwise strike it at the same place again and again, if a start takes as long
        as it is between two kills; that place would look as if it killed.
        """
        return 0.0 if stuck < 2 else min(_MAX_DELAY_S, 2 * self._gap_s) * (stuck * _SPREAD % 1)

    def _charge(self, death: Death, now_s: float) -> _Suspect:
        place = (death.place, None) if death.begun_s is not None else (death.number, death.place, death.progress)
        before = self._outside - (not death.own)
        suspect = self._suspects.setdefault(place, _Suspect(before, self._all_alive_s(now_s)))
        if death.own:
            suspect.own.append(death.items)
        else:
            suspect.outside.append((death.items, death.begun_s or 0.0))
        return suspect

    def _all_alive_s(self, now_s: float) -> float:
        return self._alive_s + sum(now_s - since for since in self._since.values())

    def _chance(self, suspect: _Suspect, outside: list[float], others: int, now_s: float) -> float:
        """How likely, at most, all deaths after the first are accidents, after what happened elsewhere.

        An accident comes within ``t`` seconds of an item's beginning with a probability of at most ``rate * t``. What
        counts is how many came how soon, since a third of them may have been noticed late.
        """
        later = outside[1:]
        elsewhere_s = self._all_alive_s(now_s) - suspect.alive_s - sum(later)
        rate = 2 * (others + 1) / max(elsewhere_s, 1e-9)
        soonest = sorted(min(1.0, rate * seconds) for seconds in later)
        least = -(-2 * len(later) // 3)
        tests = [_tail(len(later), many, soonest[many - 1]) for many in range(max(1, least), len(later) + 1)]
        return len(tests) * min(tests) if tests else 1.0


def _tail(trials: int, many: int, chance: float) -> float:
    """An upper bound of how likely at least ``many`` of ``trials`` succeed, with ``chance`` each (Chernoff's)."""
    share = many / trials
    if share <= chance:
        return 1.0
    divergence = share * math.log(share / chance)
    if many < trials:
        divergence += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-trials * divergence)


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


def _overlapping(found: list[range], items: range) -> int:
    """How many of ``found`` may have been at the same item. Exact once items are single ones."""
    return sum(_overlap(other, items) for other in found)


def restart_delay_s(deaths: int) -> float:
    """How long to wait with a process that has died ``deaths`` times at one position, where it got nowhere.

    At first not at all, then 0.1 s, 0.2 s and so on, to 3 s: what kills it (memory that runs out, a disk that is
    away) gets time to pass, and starting over and over does not take the machine from others.
    """
    return 0.0 if deaths <= 1 else min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(deaths - 2, 30))
