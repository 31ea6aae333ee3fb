"""Threads that wait: waking one without a lock that an interrupt could leave taken, a look into a queue that others
change, and the end of threads that run ahead, at the program's end too.

Runs in any process that iterates a graph.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import ParamSpec, Protocol, TypeVar

__all__ = [
    "Bell",
    "Ends",
    "begin_exit",
    "end_at_exit",
    "hold_at_exit",
    "holding_at_exit",
    "is_cut_off",
    "join_all",
    "join_deadline",
    "listed",
]


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


T = TypeVar("T")


def listed(queue: deque[T]) -> list[T]:
    """The content of ``queue`` at one moment. Any thread, without a lock that its users would have to take.

    On a free-threaded Python, a deque that is changed while it is listed raises RuntimeError; that takes a microsecond,
    so the next try nearly always succeeds.
    """
    while True:
        try:
            return list(queue)
        except RuntimeError:
            continue


P = ParamSpec("P")
R = TypeVar("R")

_ends_in: tuple[int, int] | None = None  # the process and the thread that ends it


def begin_exit() -> None:
    """This thread ends the program: what it stops from now on is missed by nobody. Idempotent."""
    global _ends_in
    _ends_in = os.getpid(), threading.get_ident()


def is_cut_off() -> bool:
    """True in a daemon thread of a program that another thread ends. Any other kind of thread is waited for."""
    if _ends_in is None or _ends_in[0] != os.getpid() or _ends_in[1] == threading.get_ident():
        return False
    return threading.current_thread().daemon


def hold_at_exit() -> None:
    """Never return in a thread that is cut off; else at once. Not to be called with a lock held."""
    if is_cut_off():
        threading.Event().wait()


def holding_at_exit(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, which a thread that is cut off neither begins nor leaves."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        hold_at_exit()
        try:
            return method(*args, **options)
        except BaseException:
            hold_at_exit()
            raise

    return call


_JOIN_S = 5.0  # so long is waited for threads that were asked to end

_log = logging.getLogger("torchpipe")


def join_deadline() -> float:
    """Until when threads that are asked now are waited for."""
    return time.monotonic() + _JOIN_S


class Ends(Protocol):
    """An owner of threads."""

    def ask(self) -> None:
        """Let them end. Does not wait."""

    def join(self, deadline: float) -> object:
        """Wait for them until ``deadline``."""


_owners: weakref.WeakSet[Ends] = weakref.WeakSet()


def end_at_exit(owner: Ends) -> None:
    """At exit, end its threads while they can still end: one that is cut off inside native code aborts the process."""
    _owners.add(owner)
    # Last registered, first called: before the device libraries that were imported meanwhile take themselves down
    atexit.unregister(_end_all)
    atexit.register(_end_all)


def _end_all() -> None:
    begin_exit()
    deadline, owners = join_deadline(), list(_owners)
    for owner in owners:
        owner.ask()
    for owner in owners:
        owner.join(deadline)


def join_all(threads: Iterable[threading.Thread], deadline: float, what: str = "", then: str = "") -> bool:
    """Wait for threads that were asked to end: have all? A warning says which still run ``what``, and what follows."""
    others = [thread for thread in threads if thread is not threading.current_thread()]  # the collector's
    for thread in others:
        if thread.is_alive():  # else it has ended, or finds that it was asked
            thread.join(max(0.0, deadline - time.monotonic()))
    stuck = [thread for thread in others if thread.is_alive()]
    if stuck and what:
        names = ", ".join(repr(thread.name) for thread in stuck)
        _log.warning(
            "thread %s still runs %s, %g s after it was asked to stop: is it waiting for something? It will %s",
            names,
            what,
            _JOIN_S,
            then,
        )
    return not stuck
