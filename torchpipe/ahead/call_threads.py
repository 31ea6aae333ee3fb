"""``CallThreads``: threads that run calls in the order they are given, and the wait for what comes of them.

Runs in any process that iterates: the calls in the threads, everything else in the thread that iterates.

A call's result is a ``concurrent.futures.Future``, and that package's ``wait`` is the wait. Its ``ThreadPoolExecutor``
is not used: it joins its threads when the interpreter exits, however long they are stuck in a user's function, and
nobody can say which of its threads runs what.

Who owns what
    a thread     runs its calls. It holds its queue, the call at hand and what ``begin`` holds, and nothing else: an
                 abandoned loader can be collected
    CallThreads  owns the threads; its ``weakref.finalize`` asks them to end. At exit they are asked and joined, so that
                 none is cut off inside native code
    a Future     belongs to whoever has submitted the call: let go of, its result is gone

How each wait ends
    the thread waits for a call    one is submitted; close(); CallThreads is collected
    the thread is in user code     it returns, or raises: any exception is the call's result
    wait_first() waits for a call  one is done; ``timeout_s``; interrupt(); close(), which cancels what has not begun
    close() waits for the threads  they end; after 5 s a warning names those that are stuck, which end when they return
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from torchpipe.errors import IteratorInvalidated

__all__ = ["Begin", "CallThreads"]

_JOIN_S = 5.0
_LOOK_S = 1.0  # a wait as long as this is begun anew: no wait notices a Ctrl-C that came in the instant before it

_log = logging.getLogger("torchpipe")

Begin: TypeAlias = Callable[[], Callable[[], None]]
"""Called first in a thread; what it returns is called last. What it raises is raised by every call."""

_Calls: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"

_running: weakref.WeakSet[CallThreads] = weakref.WeakSet()


def _stop_all() -> None:
    """At exit, let the threads end while they can still end."""
    deadline = time.monotonic() + _JOIN_S
    all_of_them = list(_running)
    for threads in all_of_them:
        threads.ask()
    for threads in all_of_them:
        threads.join(deadline)


class CallThreads:
    """One thread for each of ``begins``. Not thread-safe, except for :meth:`interrupt`.

    Each has calls of its own; if they are ``shared``, whoever is free takes the next, and all numbers mean the same.
    Threads start with the first :meth:`submit`. ``name`` is the prefix of their names, which end in its number.
    """

    def __init__(self, name: str, begins: Sequence[Begin], *, shared: bool = False) -> None:
        self._pid = os.getpid()
        self._begins = begins
        self._queues: list[_Calls] = [SimpleQueue()] * len(begins) if shared else [SimpleQueue() for _ in begins]
        self._name = name
        self._interrupted: Future[None] = Future()
        self._closed = False
        self.threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(self._begins)

    def _start(self) -> None:
        for number, (begin, calls) in enumerate(zip(self._begins, self._queues)):
            thread = threading.Thread(target=_run, args=(begin, calls), name=f"{self._name} {number}", daemon=True)
            thread.start()
            self.threads.append(thread)
        weakref.finalize(self, _ask, self._queues, self._pid).atexit = False
        _running.add(self)
        atexit.unregister(_stop_all)  # last registered, first called: before libraries take themselves down
        atexit.register(_stop_all)

    def submit(self, number: int, call: Callable[[], Any]) -> Future[Any]:
        """Let thread ``number`` run ``call`` after all those before."""
        if not self.threads:
            self._start()
        future: Future[Any] = Future()
        self._queues[number].put((future, call))
        return future

    def wait_first(self, futures: Collection[Future[Any]], timeout_s: float | None) -> Future[Any]:
        """One of ``futures`` that is done, the first in their order if several are.

        Raises: RuntimeError in torch's words after ``timeout_s``; IteratorInvalidated after :meth:`interrupt`.
        """
        interrupted = self._interrupted
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if interrupted.done():
                raise IteratorInvalidated(
                    f"{self._name} was stopped from another thread while its next item was awaited"
                )
            for future in futures:
                if future.done():
                    return future
            left_s = min(_LOOK_S, deadline - time.monotonic())
            if left_s <= 0:
                raise RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds")
            wait([*futures, interrupted], left_s, FIRST_COMPLETED)

    def interrupt(self) -> None:
        """Make a wait in another thread end at once, and all later ones, until :meth:`resume`. Thread-safe."""
        with suppress(InvalidStateError):
            self._interrupted.set_result(None)

    def resume(self) -> None:
        if self._interrupted.done():
            self._interrupted = Future()

    def ask(self) -> None:
        """Let the threads end after the calls that they have. Does not wait."""
        _ask(self._queues, self._pid)

    def join(self, deadline: float) -> list[threading.Thread]:
        """Wait for the threads until ``deadline``: those that still run."""
        if self._pid != os.getpid():
            return []
        others = [thread for thread in self.threads if thread is not threading.current_thread()]  # the collector's
        for thread in others:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [thread for thread in others if thread.is_alive()]

    def close(self) -> None:
        """End the threads; calls that have not begun should have been cancelled. Idempotent. Waits at most 5 s."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self.interrupt()
        self.ask()
        stuck = self.join(time.monotonic() + _JOIN_S)
        if stuck:
            _log.warning(
                "thread %s still runs your code %g s after it was asked to stop: is it waiting for something? "
                "It will end when that returns",
                ", ".join(repr(thread.name) for thread in stuck),
                _JOIN_S,
            )


def _ask(queues: Sequence[_Calls], pid: int) -> None:
    if pid == os.getpid():  # in a forked child there is nobody to ask
        for calls in queues:
            calls.put(None)


def _run(begin: Begin, calls: _Calls) -> None:
    """The thread's life."""
    broken: BaseException | None = None
    end: Callable[[], None] | None = None
    try:
        end = begin()
    except BaseException as error:
        broken = error
    try:
        while (entry := calls.get()) is not None:
            _carry_out(*entry, broken)
            del entry  # its result is the consumer's
    finally:
        if end is not None:
            end()
        _refuse_rest(calls)


def _carry_out(future: Future[Any], call: Callable[[], Any], broken: BaseException | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = None if broken is not None else call()
    except BaseException as error:
        broken = error
    if broken is None:
        future.set_result(result)
    else:
        future.set_exception(broken)
        broken = None  # a traceback that leads to this frame would keep it


def _refuse_rest(calls: _Calls) -> None:
    """Nobody must wait for calls that nobody will run."""
    asked = 0  # of other threads, where they share the queue
    with suppress(Empty):
        while True:
            entry = calls.get_nowait()
            asked += entry is None
            if entry is not None and entry[0].set_running_or_notify_cancel():
                entry[0].set_exception(CancelledError())
    for _ in range(asked):
        calls.put(None)
