"""Guards what one thread of one process uses: clear errors instead of corruption, and states that are never half made.

Runs in the user's process.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from torchpipe.node.announce import warn_user

__all__ = [
    "BeginGuard",
    "Hold",
    "OneUser",
    "check_process",
    "has_interpreter_lock",
    "refuse_pickling",
    "tell_of_two_ways",
]

T = TypeVar("T")


class OneUser:
    """``advance`` belongs to one thread at a time and is refused to a second one; ``read`` waits for it to return.

    Holds through an interrupt at any moment: what may be left behind is that this same thread counts as the user.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._user: dict[str, int] = {}  # setdefault is atomic
        self._inside = False

    def advance(self, step: Callable[[], T]) -> T:
        """Run ``step``. Raises: RuntimeError in a forked child, and while another call is under way."""
        check_process(self._pid, self._what)
        me = threading.get_ident()
        if self._user.setdefault("thread", me) != me:
            raise self.refusal(inside=False)
        try:
            with self._lock:
                if self._inside:
                    raise self.refusal(inside=True)
                try:
                    self._inside = True
                    return step()
                finally:
                    self._inside = False
        finally:
            self._user.clear()

    def read(self, what: str, step: Callable[[], T]) -> T:
        """Run ``step`` between two calls of ``advance``. Raises: RuntimeError inside one, and in a forked child."""
        check_process(self._pid, self._what)
        with self._lock:
            if self._inside:  # of this thread: another one would hold the lock
                raise self.refusal_inside(what)
            return step()

    def refusal(self, *, inside: bool) -> RuntimeError:
        """The error for a call of ``next`` while another one is under way, in the same thread or in another."""
        if inside:
            return RuntimeError(
                f"next() of this {self._what} was called while it is at work, by a function of its own graph or by a "
                "signal handler"
            )
        return RuntimeError(
            f"two threads use one {self._what} at once: call next() in one thread, which hands the items on (a queue, "
            "say)"
        )

    @staticmethod
    def refusal_inside(what: str, inside: str = "next()") -> RuntimeError:
        return RuntimeError(
            f"{what} was called while {inside} is at work, by a signal handler or by a function of the graph itself: "
            "there, only note that it is wanted, and call it between two items"
        )

    @property
    def here(self) -> bool:
        """Is this thread the one that runs ``advance``, if any does?"""
        return self._user.get("thread", 0) in (0, threading.get_ident())


class BeginGuard:
    """Is there a thread in which an epoch begins? What a signal handler ended in there would be gone on with.

    ``thread`` is set and cleared by plain assignments: an interrupt could keep a method from being run.
    """

    def __init__(self) -> None:
        self.thread = 0

    def check_outside(self) -> int:
        """This thread. Raises: RuntimeError while it begins an epoch."""
        me = threading.get_ident()
        if self.thread == me:
            raise OneUser.refusal_inside("closing the loader", "iter()")
        return me


class Hold:
    """What a loader and its iterators have in common: when the last of them is dropped, ``end`` is called.

    They are part of no cycle of references, though streams and processes are: so these end at once, and not when the
    collector runs. In a forked child that has not taken hold itself, all belongs to the parent.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        self._holder = [0]  # the process
        weakref.finalize(self, _let_go, self._holder, end).atexit = False

    def take(self) -> None:
        """From now on there is something to end, in this process."""
        self._holder[0] = os.getpid()


def _let_go(holder: list[int], end: Callable[[], object]) -> None:
    if holder[0] == os.getpid():
        end()


def tell_of_two_ways(epoch: int, delivered: int, next_epoch: int, things: str) -> None:
    """Warn: a state was saved after ``break``, and the loop begins again."""
    warn_user(
        f"a state was saved where the loop over epoch {epoch} was left (break, islice), after {delivered} {things}. A "
        f"run that is resumed from it goes on with the rest of epoch {epoch}; this run begins epoch {next_epoch}. If "
        "epochs are to be cut short, call loader.set_epoch(loader.epoch) before you save: then both go on with the "
        "next epoch",
        UserWarning,
    )


def has_interpreter_lock() -> bool:
    """Does one thread run Python code at a time? Else (free-threaded Python), a generator that two threads use at once
    may crash the interpreter, instead of refusing the second one."""
    return sys._is_gil_enabled() if hasattr(sys, "_is_gil_enabled") else True


def check_process(pid: int, what: str) -> None:
    """Raises: RuntimeError unless this is process ``pid``."""
    if os.getpid() != pid:
        raise RuntimeError(
            f"this {what} was started in process {pid} and does not work in its forked child {os.getpid()}: both would "
            "read from the same workers. Make a loader in this process, from the same graph and, to go on from its "
            "position, a state_dict() taken before the fork"
        )


_PICKLE_PARTS = (
    "pickle the graph (loader.datapipe) and loader.state_dict(), then build a loader from both (DataLoader2.from_state)"
)


def refuse_pickling(value: Any, instead: str = _PICKLE_PARTS) -> NoReturn:
    raise TypeError(
        f"a {type(value).__name__} cannot be pickled or copied, since it owns processes and a live position: {instead}"
    )
