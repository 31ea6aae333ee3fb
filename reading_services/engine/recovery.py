"""The decision after a worker has ended: open it anew, when, or give up; and the texts about it, for the log and as an
error. Decisions alone: no I/O, no clock. Runs in the main process.

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
from torchpipe.errors import WorkerDiedError

__all__ = ["Death", "Decision", "Recovery", "RestartPlan", "restart_delay_s"]

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
class RestartPlan:
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


@dataclass(frozen=True, kw_only=True)
class Death:
    """``end`` of the worker ``name``. ``num_shards`` is None between epochs. ``torch_wording``: say batch and
    worker, as torch's loader does, for item and shard.
    """

    name: str
    end: End
    dispatcher: bool
    num_shards: int | None
    torch_wording: bool = False

    def __str__(self) -> str:
        pid = "" if self.end.pid is None else f" (pid {self.end.pid})"
        return f"{self.name}{pid} {self.end.cause} while {self._doing()}"

    def consequence(self, decision: Decision, max_deaths: int, restarts: int) -> str:
        """The next step, for the log."""
        if not decision.deaths:
            often = "" if restarts < 10 else f" ({restarts} so far: Restart(max_restarts=...) limits them)"
            return f"restarting it at its last position; no {self._unit} is to blame{often}"
        times = "once" if decision.deaths == 1 else f"{decision.deaths} times"
        return (
            f"restarting it at its last position (it has died {times} here; max_deaths={max_deaths} times is an error)"
        )

    @property
    def _unit(self) -> str:
        return "batch" if self.torch_wording else "item"

    def _doing(self) -> str:
        end = self.end
        if self.num_shards is None or end.lane < 0:
            return "idle (starting, or waiting for your loop)"
        if self.torch_wording:
            what = "a batch" if len(end.items) == 1 else f"one of {len(end.items)} batches"
            return f"making {what}" if end.begun else "on its way to the next batch"
        item = f"item {end.items[0]}" if len(end.items) == 1 else f"one of items {end.items[0]} to {end.items[-1]}"
        where = "the dispatched stream" if self.dispatcher else f"shard {end.lane % self.num_shards}"
        if not end.begun:
            return f"on its way to {item} of {where} (making earlier ones again, or waiting for its input)"
        return f"making {item} of {where}"

    def error(self, decision: Decision, max_restarts: int | None) -> WorkerDiedError:
        """The error for an item or a start that has ended its worker too often, or for a budget that is used up."""
        error = WorkerDiedError(self._error_text(decision, max_restarts))
        error.pid, error.exitcode = self.end.pid, self.end.exitcode
        error.making = self.num_shards is not None and self.end.lane >= 0 and self.end.begun
        return error

    def _error_text(self, decision: Decision, max_restarts: int | None) -> str:
        where = f" in {self.end.node}" if self.end.node is not None else ""
        if not decision.give_up:
            cause = (
                "Give more of timeout= if nothing hangs there"
                if self.end.timed_out
                else "No item is known to be the cause: look for what kills processes (memory that runs out, limits, a "
                "scheduler)"
            )
            none = "" if max_restarts else ', as on_worker_death="raise" does'
            return (
                f"{self}{where}: that is one death more than max_restarts={max_restarts} allows{none}. {cause}, and "
                "resume from the loader's state. With max_restarts=None, on_worker_death=Restart(...) replaces them "
                "any number of times"
            )
        text = f"{self}{where}: it has died {decision.deaths} times here, so what it does here is the likely cause. "
        if self.end.timed_out:
            return (
                f"{text}If nothing hangs there, give more of timeout=: it must be longer than whatever a worker does "
                f"without handing {self._unit}s out (its start, a long one, a run of those that a filter drops)"
            )
        if not self.end.begun:
            return (
                f"{text}Its stderr says more. Look at what runs before its first item (what is unpickled, "
                "worker_init_fn, files that are opened, items that are made again). If it imports your script as it "
                'starts (spawn, forkserver), put what the script does behind `if __name__ == "__main__":`'
            )
        without = "num_workers=0" if self.torch_wording else "num_workers=0, or InProcessReadingService"
        return (
            f"{text}SIGKILL often means that memory ran out, SIGSEGV a crash in native code, an exit code that your "
            f"code called exit(). Run it without workers ({without}) to see it happen in a debugger. If processes are "
            "killed from outside now and then, and an item takes long, give on_worker_death=Restart(max_deaths=...)"
        )
