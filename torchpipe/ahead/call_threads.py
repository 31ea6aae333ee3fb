"""``CallThreads``: threads that run calls in the order they are given, and the wait for what comes of them.

Runs in any process that iterates: the calls in the threads, everything else in the thread that iterates.

``concurrent.futures`` is not used. Its ``ThreadPoolExecutor`` joins its threads when the interpreter exits, however
long they are stuck in a user's function, and nobody can say which of its threads runs what. Its ``wait`` takes the
locks of all futures in Python code: Ctrl-C in the midst of that leaves them taken, and the threads wait for ever.

Who owns what
    a thread     runs its calls. It holds its queue, the bell, the call at hand and what ``begin`` holds, and nothing
                 else: an abandoned loader can be collected
    CallThreads  owns the threads; its ``weakref.finalize`` asks them to end. At exit they are asked and joined, so that
                 none is cut off inside native code
    a Call       belongs to whoever has submitted it: let go of, its result is gone

How each wait ends
    the thread waits for a call    one is submitted; close(); CallThreads is collected
    the thread is in user code     it returns, or raises: any exception is the call's result
    wait_first() waits for a call  one is done; ``timeout_s``; interrupt(); close(), which cancels what has not begun
    close() waits for the threads  they end; after 5 s a warning names those that are stuck, which end when they return
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

from torchpipe.ahead.waiting import Bell, end_at_exit, join_all, join_deadline
from torchpipe.errors import IteratorInvalidated, raise_error_of

__all__ = ["Begin", "Call", "CallThreads"]

R = TypeVar("R")

_LOOK_S = 1.0  # a wait as long as this is begun anew: no wait notices a Ctrl-C that came in the instant before it

Begin: TypeAlias = Callable[[], Callable[[], None]]
"""Called first in a thread; what it returns is called last. What it raises is raised by every call."""

_Calls: TypeAlias = "SimpleQueue[Call[Any] | None]"


class Call(Generic[R]):
    """A call for a thread to run, then its result."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function: Callable[[], R] | None = function
        self._result: R | None = None
        self.error: BaseException | None = None  # that it has raised, until that is raised here
        self.done = False

    def result(self) -> R:
        """The result, once the call is done. Raises: the error that the function has raised."""
        assert self.done
        if self.error is not None:
            raise_error_of(self)
        return self._result  # type: ignore[return-value]

    def cancel(self) -> None:
        """Do not run it, unless it has begun. Nobody may wait for it."""
        self._function = None

    def run(self, broken: BaseException | None) -> None:
        """In the thread, which ``broken`` keeps from running anything."""
        function, self._function = self._function, None  # and what it holds is let go of
        if function is not None:
            self._result, self.error = _outcome(function) if broken is None else (None, broken)
            self.done = True  # last: another thread looks


def _outcome(function: Callable[[], R]) -> tuple[R | None, BaseException | None]:
    """A traceback leads to this frame, and from it to nothing that holds the error."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


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
        self._bell = Bell()
        self._interrupted = False
        self._closed = False
        self.threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(self._begins)

    def _start(self) -> None:
        weakref.finalize(self, _ask, self._queues, self._pid).atexit = False
        end_at_exit(self)
        for number, (begin, calls) in enumerate(zip(self._begins, self._queues)):
            name, parts = f"{self._name} {number}", (begin, calls, self._bell)
            thread = threading.Thread(target=_run, args=parts, name=name, daemon=True)
            self.threads.append(thread)
            thread.start()  # after which a Ctrl-C may come, or in the midst of it

    def submit(self, number: int, function: Callable[[], R]) -> Call[R]:
        """Let thread ``number`` run ``function`` after all those before."""
        if not self.threads:
            self._start()
        call = Call(function)
        self._queues[number].put(call)
        return call

    def wait_first(self, calls: Collection[Call[R]], timeout_s: float | None, waited_s: float = 0.0) -> Call[R]:
        """One of ``calls`` that is done, the first in their order if several are.

        Raises: RuntimeError in torch's words after ``timeout_s``, of which ``waited_s`` are over; IteratorInvalidated
        after :meth:`interrupt`.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s - waited_s
        bell = self._bell
        try:
            while True:
                if self._interrupted:
                    raise IteratorInvalidated(
                        f"{self._name} was stopped from another thread while its next item was awaited"
                    )
                for call in calls:
                    if call.done:
                        return call
                if not bell.awaited:
                    bell.awaited = True
                    continue
                left_s = min(_LOOK_S, deadline - time.monotonic())
                if left_s <= 0:
                    raise RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds")
                bell.hear(left_s)
        finally:
            bell.awaited = False

    def interrupt(self) -> None:
        """Make a wait in another thread end at once, and all later ones, until :meth:`resume`. Thread-safe."""
        self._interrupted = True
        self._bell.notify()

    def resume(self) -> None:
        self._interrupted = False

    def ask(self) -> None:
        """Let the threads end after the calls that they have. Does not wait."""
        _ask(self._queues, self._pid)

    def join(self, deadline: float, what: str = "", then: str = "") -> bool:
        """Wait for the threads, as :func:`join_all`: have all ended?"""
        return self._pid != os.getpid() or join_all(self.threads, deadline, what, then)

    def close(self) -> None:
        """End the threads; calls that have not begun should have been cancelled. Idempotent. Waits at most 5 s."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self.interrupt()
        self.ask()
        self.join(join_deadline(), "your code", "end when that returns")


def _ask(queues: Sequence[_Calls], pid: int) -> None:
    if pid == os.getpid():  # in a forked child there is nobody to ask
        for calls in queues:
            calls.put(None)


def _run(begin: Begin, calls: _Calls, bell: Bell) -> None:
    """The thread's life."""
    end, broken = _outcome(begin)
    try:
        while (call := calls.get()) is not None:
            call.run(broken)
            del call  # its result is the consumer's
            bell.notify()
    finally:
        if end is not None:
            end()
        _refuse_rest(calls)
        bell.notify()
        del broken  # its traceback leads to this frame


def _refuse_rest(calls: _Calls) -> None:
    """Nobody must wait for calls that nobody will run."""
    asked = 0  # of other threads, where they share the queue
    with suppress(Empty):
        while True:
            call = calls.get_nowait()
            if call is None:
                asked += 1
            else:
                call.run(CancelledError())
    for _ in range(asked):
        calls.put(None)
