"""``AheadFile``: a remote file that is read by ranges, several at once, before they are asked for.

Runs in the thread that reads; the requests in ``RequestThreads``. What is read ahead is part of no position and of no
state: a file stands where its reader stands.

The threads in which a process asks servers for bytes before they are read: a few, for all files together.

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
from typing import Any, Protocol

from torchpipe.ahead.waiting import end_at_exit, join_all
from torchpipe.formats.storage.block_cache import CELL_BYTES, BlockCache
from torchpipe.formats.storage.retrying import RemoteFile, ReopenedFile

__all__ = ["AheadFile", "BytesAhead", "RangeRequest", "RequestThreads", "Runs", "budget", "request_threads"]

THREADS = 8
PROCESS_BYTES = 256 << 20  # asked for ahead, of all files that are open in a process
_IDLE_S = 0.2


class RangeRequest:
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


class BytesAhead:
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
_budget = BytesAhead(PROCESS_BYTES)


def request_threads() -> RequestThreads:
    """The request threads of this process."""
    return _threads


def budget() -> BytesAhead:
    """That of this process."""
    return _budget


def _begin_anew() -> None:
    global _threads, _budget
    _threads, _budget = RequestThreads(), BytesAhead(PROCESS_BYTES)


os.register_at_fork(after_in_child=_begin_anew)


PART_BYTES = 4 << 20  # of one request, at most
_LEAST_BYTES = 1 << 16  # of one request: a reader of a few bytes reads more of them
_RUN_BYTES = 1 << 18  # read in sequence, after which more of it is expected
_FIRST_BYTES = 4 << 20  # asked for ahead then; twice as much whenever that has been read


class AheadFile(RemoteFile):
    """``file``, of a known size, by ranges. Not thread-safe.

    Where a reader reads in sequence, up to ``ahead_bytes`` behind it are asked for, in parts of 4 MiB, each by its own
    request. Where it goes about, it asks for what it needs. Bytes that are held or asked for make ``ahead_bytes`` at
    most, or the one request that is needed: parts that were read go first. ``stop`` is a byte from which on little is
    read. With ``cache``, whole blocks are asked for, and kept there by ``key``.

    Raises: as :class:`ReopenedFile`, of the request that a read needs: what was asked for in vain is asked for again
    when reading comes to it.
    """

    def __init__(self, file: ReopenedFile, ahead_bytes: int, cache: BlockCache | None = None, key: str = "") -> None:
        assert file.size is not None
        self.stop: int | None = None
        self.name = file.name
        self.size: int = file.size
        self._file = file
        self._ahead_bytes = ahead_bytes
        self._cache, self._key = cache, key
        self._part_bytes = max(_LEAST_BYTES, min(PART_BYTES, ahead_bytes // 2))
        if cache is not None:
            self._part_bytes = max(CELL_BYTES, self._part_bytes // CELL_BYTES * CELL_BYTES)
        self._last = 0  # where the last read ended
        self._run = 0  # bytes read in sequence
        self._window = 0  # bytes behind the reader that are asked for
        self._parts: list[RangeRequest] = []  # what goes first stands first
        self._held = 0  # their bytes
        self._budget: BytesAhead = budget()
        self._by_ranges = True

    @property
    def version(self) -> str | None:
        return self._file.version

    def begin_at(self, start: int, stop: int | None) -> None:
        """Ask for the first bytes of a reader who begins at byte ``start`` (a negative number: so many before the end),
        and may stop at ``stop``."""
        if start < 0:
            start = max(0, self.size + start)
        limit = min(self.size, self.size if stop is None else stop, start + min(_FIRST_BYTES, self._ahead_bytes))
        while start < limit and (part := self._add(start, limit, needed=False)) is not None:
            start = part.stop

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.size - self._offset)
        if count <= 0:
            return 0
        if self._budget is not budget():  # in a forked child: nothing that its parent asked for will ever come
            self._forget()
            self._file.begin_anew()
        if self._by_ranges:
            try:
                count = self._read_part(memoryview(buffer)[:count])
            except ValueError:
                if not self._file.read_in_sequence():
                    raise
                self._by_ranges = False
                self._forget()
        if not self._by_ranges:
            self._file.seek(self._offset)
            count = self._file.readinto(memoryview(buffer)[:count])
        self._offset += count
        self._last = self._offset
        return count

    def _read_part(self, buffer: memoryview) -> int:
        if self._offset != self._last:
            self._run = self._window = 0
        part = self._asked(self._offset, len(buffer))
        try:
            data = part.wait_data()
        except BaseException:
            self._drop(part)  # reading again asks again
            raise
        first = self._offset - part.start
        count = min(len(buffer), part.stop - self._offset)
        buffer[:count] = memoryview(data)[first : first + count]
        self._run += count
        if self._offset + count == part.stop:  # it has been read
            self._parts.remove(part)
            self._parts.insert(0, part)
            self._window = min(self._ahead_bytes, 2 * self._window)
        return count

    def _asked(self, offset: int, count: int) -> RangeRequest:
        """The part that holds ``offset``. What is to be read behind it has been asked for as well."""
        limit = self.size if self.stop is None else min(self.size, self.stop)
        if self._run >= _RUN_BYTES and offset < limit:
            self._window = max(self._window, min(self._ahead_bytes, _FIRST_BYTES))
        else:
            self._window = 0
        until = max(offset + count, min(limit, offset + count + self._window))
        part = self._holding(offset)
        if part is None:
            part = self._add(offset, max(until, min(self.size, offset + _LEAST_BYTES)), needed=True)
            assert part is not None
        position = part.stop
        # The last part would be asked for bit by bit, as the reader comes on
        while position < until and (position + self._part_bytes <= until or until in (limit, offset + count)):
            more = self._holding(position) or self._add(position, until, needed=False)
            if more is None:
                break
            position = more.stop
        return part

    def _holding(self, position: int) -> RangeRequest | None:
        return next((part for part in self._parts if part.start <= position < part.stop), None)

    def _add(self, position: int, until: int, *, needed: bool) -> RangeRequest | None:
        """A part from ``position`` on, up to ``until`` at most; None if there is no room for it."""
        start, stop = position, min(until, position + self._part_bytes)
        if self._cache is not None:
            start, stop = start // CELL_BYTES * CELL_BYTES, min(self.size, -(-stop // CELL_BYTES) * CELL_BYTES)
        stop = min([stop, *(part.start for part in self._parts if part.start > position)])
        count = stop - start
        while self._held + count > self._ahead_bytes:
            served = (part for part in self._parts if needed or part.stop <= self._offset or part.start >= until)
            if (old := next(served, None)) is None:
                break
            self._drop(old)
        if not needed and self._held + count > self._ahead_bytes:
            return None
        if not self._budget.take(count, needed=needed):
            return None
        part = RangeRequest(start, stop, self._fetcher())
        self._parts.append(part)
        self._held += count
        if not needed:
            request_threads().submit(part)
        return part

    def _fetcher(self) -> Any:
        """A function that asks for a part, and does not hold this file."""
        file, cache, key = self._file, self._cache, self._key
        if cache is None:
            return file.fetch
        return lambda start, stop: cache.read_through(key, start, stop, file.fetch)

    def _drop(self, part: RangeRequest) -> None:
        part.drop()
        self._parts.remove(part)
        self._held -= part.stop - part.start
        if self._budget is budget():  # else it was a forking parent's, some thread of which may have held its lock
            self._budget.give_back(part.stop - part.start)

    def _forget(self) -> None:
        for part in list(self._parts):
            self._drop(part)
        self._budget = budget()
        self._run = self._window = 0

    def close(self) -> None:
        """Does not wait for what is being asked for: that is thrown away when it comes."""
        if not self.closed:
            self._forget()
            self._file.close()
        super().close()
