"""The threads in which a process asks servers for bytes before they are read: a few, for all files together.

Who owns what
    a thread    belongs to the process's ``RequestThreads``. It begins when there is more to ask for than threads that
                wait, and ends when nothing was to do for a moment: nobody need close anything
    what runs   belongs to whoever has submitted it. Of a file, a Request holds the function that asks the server alone

How each wait ends
    a thread waits for a request    one comes; ``_IDLE_S``; the process ends
    a reader waits for a request    one that no thread has begun it runs by itself: so it never waits for a thread to be
                                    free, or to exist. One that has begun ends as the server's answer or timeout does
    at exit                         what has not begun is dropped; threads are waited for 5 s, as all others are

A forked child has none of its parent's threads: it begins with new ones, and nothing asked for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from torchpipe.ahead.waiting import end_at_exit, join_all

__all__ = ["Budget", "Request", "RequestThreads", "Runs", "budget", "request_threads"]

THREADS = 8
PROCESS_BYTES = 256 << 20  # asked for ahead, of all files that are open in a process
_IDLE_S = 0.2


class Request:
    """The bytes from ``start`` to before ``stop``: to be asked for, then there."""

    def __init__(self, start: int, stop: int, fetch: Callable[[int, int], bytes]) -> None:
        self.start = start
        self.stop = stop
        self._fetch: Callable[[int, int], bytes] | None = fetch
        self._data: bytes | None = None
        self._unbegun = threading.Lock()  # whoever takes it runs the request, or has dropped it
        self._done = threading.Event()

    def run(self) -> None:
        """Ask, unless somebody else has begun to. In vain, if the server fails: the reader asks again."""
        if self._unbegun.acquire(blocking=False):
            try:
                with suppress(Exception):
                    self._ask()
            finally:
                self._done.set()

    def _ask(self) -> bytes:
        assert self._fetch is not None
        self._data = data = self._fetch(self.start, self.stop)
        self._fetch = None
        return data

    def drop(self) -> None:
        """Do not begin it. Nobody may wait for it."""
        self._unbegun.acquire(blocking=False)

    def wait_data(self) -> bytes:
        """For the reader. Raises: what asking raises, when it is asked here and now."""
        if not self._unbegun.acquire(blocking=False):
            self._done.wait()
        self._done.set()
        return self._ask() if self._data is None else self._data


class Runs(Protocol):
    def run(self) -> object:
        """Called in a thread. Does not raise."""


class RequestThreads:
    """Runs requests, in the order they come, up to ``THREADS`` at a time. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Runs] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._ended = False

    def submit(self, request: Runs) -> None:
        with self._changed:
            if self._ended:
                return  # the reader runs it, should it come so far
            self._waiting.append(request)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif len(self._threads) < THREADS:
                if not self._threads:
                    end_at_exit(self)
                thread = threading.Thread(target=self._run, name="torchpipe requests", daemon=True)
                with suppress(RuntimeError):  # no thread is to be had: the reader, or a thread that is free, runs it
                    thread.start()
                    self._threads.add(thread)

    def _run(self) -> None:
        while (request := self._next()) is not None:
            request.run()
            del request  # its bytes are the file's

    def _next(self) -> Runs | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._ended, _IDLE_S)
            self._idle -= 1
            if self._waiting and not self._ended:
                return self._waiting.popleft()
            self._threads.discard(threading.current_thread())
            return None

    def ask(self) -> None:
        """Let all end, for good. Does not wait."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()

    def join(self, deadline: float) -> bool:
        return join_all(list(self._threads), deadline)


class Budget:
    """Bytes that may be asked for ahead, in all. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, count: int, *, needed: bool = False) -> bool:
        """True if there were as many, or they are ``needed`` at once."""
        with self._lock:
            if not needed and self._taken + count > self._most:
                return False
            self._taken += count
            return True

    def give_back(self, count: int) -> None:
        with self._lock:
            self._taken -= count


_threads = RequestThreads()
_budget = Budget(PROCESS_BYTES)


def request_threads() -> RequestThreads:
    """The request threads of this process."""
    return _threads


def budget() -> Budget:
    """That of this process."""
    return _budget


def _begin_anew() -> None:
    global _threads, _budget
    _threads, _budget = RequestThreads(), Budget(PROCESS_BYTES)


os.register_at_fork(after_in_child=_begin_anew)
