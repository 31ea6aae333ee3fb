"""What is said of a process that has died: how, where in the stream, and, if it is no accident, the error. No I/O.

Runs in the main process.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from reading_services._supervision.recovery import Death, Decision
from torchpipe.errors import WorkerDiedError

__all__ = ["PostMortem"]


@dataclass(frozen=True, kw_only=True)
class PostMortem:
    """``lane`` and ``shard`` are -1 where no item was being made.

    With ``dispatcher``, items are those of the dispatched stream. ``items`` were begun together, ``begun_s`` before the
    end: one of them, if any, is what killed the process. ``begun_s`` is None if it had begun none, and with a lane, was
    on its way to the first of ``items``. ``own`` says that the process brought about its end, not somebody else.
    """

    number: int
    name: str
    pid: int
    exitcode: int | None
    cause: str
    own: bool
    dispatcher: bool
    lane: int
    shard: int
    items: range
    begun_s: float | None
    node: str | None
    batches: bool = False  # are they what users of torch's loader call batches, and shards their workers?

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}) {self.cause} while {self._doing()}"

    def death(self, progress: Hashable) -> Death:
        """What the decision needs of it."""
        place = ("dispatcher" if self.dispatcher else "shard", self.lane)
        return Death(
            number=self.number,
            own=self.own,
            place=place,
            items=self.items if self.begun_s is not None else range(1),
            begun_s=self.begun_s,
            progress=progress,
        )

    def consequence(self, decision: Decision, max_deaths: int, restarts: int) -> str:
        """What is done now, for the log."""
        if not decision.deaths:
            often = "" if restarts < 10 else f" ({restarts} so far; max_restarts=... would set an end to it)"
            return f"starting it anew where it stood; no {self._unit} is to blame{often}"
        more = "" if self.own else ", or later if others die as well"
        times = "once" if decision.deaths == 1 else f"{decision.deaths} times"
        return f"starting it anew where it stood (it has died {times} here; {max_deaths} times is an error{more})"

    @property
    def _unit(self) -> str:
        return "batch" if self.batches else "item"

    def _doing(self) -> str:
        if self.shard < 0:
            return f"making no {self._unit} (starting, or waiting for your loop)"
        if self.batches:
            what = "a batch" if len(self.items) == 1 else f"one of {len(self.items)} batches"
            return f"making {what}" if self.begun_s is not None else "making no batch (on its way to the next one)"
        item = f"item {self.items[0]}" if len(self.items) == 1 else f"one of items {self.items[0]} to {self.items[-1]}"
        what = f"{item} of " + ("the dispatched stream" if self.dispatcher else f"shard {self.shard}")
        if self.begun_s is None:
            return f"making no item (on its way to {what}, or waiting for what that needs)"
        return f"making {what}"

    def error(self, decision: Decision, max_restarts: int | None) -> WorkerDiedError:
        """The error for a position that has killed its process too often, or for a budget that is used up."""
        error = WorkerDiedError(self._error_text(decision, max_restarts))
        error.pid, error.exitcode = self.pid, self.exitcode
        return error

    def _error_text(self, decision: Decision, max_restarts: int | None) -> str:
        where = f" in {self.node}" if self.node is not None else ""
        if decision.exhausted:
            return (
                f"{self}{where}: one death more than max_restarts={max_restarts} allows. Nothing says that an item is "
                "to blame. Look for who kills processes (memory that runs out, limits, a scheduler), then go on from "
                "the loader's state, or give max_restarts=None to survive any number of deaths"
            )
        without = "num_workers=0" if self.batches else "num_workers=0, or InProcessReadingService"
        return (
            f"{self}{where}: it has died {decision.deaths} times here, so what it does here is the likely cause. "
            "SIGKILL often means that memory ran out, SIGSEGV a crash in native code, an exit code that user code "
            f"called exit(). Run it without workers ({without}) to see it happen in a debugger"
        )
