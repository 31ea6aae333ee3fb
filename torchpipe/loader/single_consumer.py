"""Guards what one thread of one process uses: clear errors instead of corruption, and states that are never half made.

Runs in the user's process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from torchpipe.ahead.waiting import hold_at_exit
from torchpipe.errors import IteratorInvalidated

__all__ = [
    "BeginGuard",
    "Hold",
    "OneUser",
    "Process",
    "check_process",
    "refusal",
    "refuse_pickling",
]

T = TypeVar("T")


_users: weakref.WeakSet[OneUser] = weakref.WeakSet()


class Process:
    """The id of this process: ``os.getpid()`` takes 0.3 us, which is much for an item."""

    pid = os.getpid()

    @classmethod
    def note(cls) -> None:
        cls.pid = os.getpid()
        for user in _users:
            user.block = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Process.note)


class OneUser:
    """``next`` belongs to one call at a time, and others are refused: of other threads, and of signal handlers and
    functions of the graph; ``read`` waits for it to return. ``taker`` is the thread that is inside, and has the
    ``lock``. ``block``: items that may be taken without, the next one last; in a forked child none.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.taker = 0
        self.block: list[Any] = []
        _users.add(self)

    def take(self, step: Callable[[], T]) -> T:
        """The result of ``step``, which is a call of ``next``. Two that begin at the very same moment take turns.

        Raises: RuntimeError while another call is under way, and in a forked child; what ``step`` raises.
        """
        me, taker = threading.get_ident(), self.taker
        if taker == me:
            raise RuntimeError(
                f"next() of this {self._what} was called while it is at work, by a function of its own graph or by a "
                "signal handler"
            )
        if taker:
            raise RuntimeError(
                f"two threads use one {self._what} at once: call next() in one thread, which hands the items on (a "
                "queue, say)"
            )
        if self.pid != Process.pid:  # before the lock, which a forked copy may have inherited locked
            check_process(self.pid, self._what)
        try:
            with self.lock:
                self.taker = me
                try:
                    return step()
                finally:
                    self.taker = 0
        except BaseException:
            if self.taker == me:  # an interrupt has kept it from being cleared
                self.taker = 0
            hold_at_exit()
            raise

    def read(self, what: str, step: Callable[[], T]) -> T:
        """Run ``step`` between two calls of ``next``. Raises: RuntimeError inside one, and in a forked child."""
        check_process(self.pid, self._what)
        with self.lock:
            if self.taker:  # this thread: another one would hold the lock
                raise self.refusal_inside(what)
            return step()

    @staticmethod
    def refusal_inside(what: str, inside: str = "next()") -> RuntimeError:
        return RuntimeError(
            f"{what} was called while {inside} is at work, by a signal handler or by a function of the graph itself: "
            "there, only note that it is wanted, and call it between two items"
        )

    @property
    def here(self) -> bool:
        """True if no other thread is inside ``next``."""
        return self.taker in (0, threading.get_ident())


class BeginGuard:
    """Notes the thread in which an epoch begins: a signal handler that closes the loader there would have its work
    undone by iter() when it goes on.

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
    """The common hold of a loader and its iterators: when the last of them is dropped, ``end`` is called.

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


def check_process(pid: int, what: str) -> None:
    """Raises: RuntimeError unless this is process ``pid``."""
    if os.getpid() != pid:
        raise RuntimeError(
            f"this {what} was started in process {pid} and does not work in its forked child {os.getpid()}: both would "
            "read from the same workers. Make a loader in this process, from the same graph and, to go on from its "
            "position, a state_dict() taken before the fork"
        )


def refusal(epoch: int, *, superseded: bool) -> IteratorInvalidated:
    """The error of ``next`` where the iterator is over and its epoch is not: somebody else has ended it, or an
    exception, after which a loop that passes over exceptions must not take the rest for an end of the epoch.
    """
    if superseded:
        return IteratorInvalidated(
            "a newer iter(), load_state_dict() or shutdown() has ended this iterator: a loader has one iterator at a "
            "time. For two loops at once (zip(a, b), a loop within a loop) make two loaders; else call iter(loader) "
            "again"
        )
    return IteratorInvalidated(
        f"an exception has ended this iterator in the midst of epoch {epoch}, and nothing follows in it. To go on with "
        "the rest of the epoch, loader.load_state_dict(loader.state_dict()) and iter(loader); iter(loader) alone "
        "begins the next epoch"
    )


_PICKLE_PARTS = (
    "pickle the graph (loader.datapipe) and loader.state_dict(), then build a loader from both (DataLoader2.from_state)"
)


def refuse_pickling(value: Any, instead: str = _PICKLE_PARTS) -> NoReturn:
    raise TypeError(
        f"a {type(value).__name__} cannot be pickled or copied, since it owns processes and a live position: {instead}"
    )
