"""A page of shared memory where each worker notes what it is doing. The main process reads it, also after a death.

The main process makes one page for each worker and owns it. 64-bit integers, one writer for each, so no locks: what it
is making, then what it spends its time on.

A worker's watch on the main process, and the signs that the worker is alive itself. Runs in workers.

Owner: one daemon thread for each worker, for its whole life. Its wait ends when the main process does, and then so does
the worker, at once and without clean-up: there is nobody left to clean up for.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn

from reading_services.processes.arena import SharedFile
from reading_services.processes.signals import pidfd_of
from torchpipe.node.host import Trace
from torchpipe.stats.sheet import AWAITING_INPUT, MAKING, NodeSheet, TimeSheet
from torchpipe.stats.tracing import Tracing

__all__ = ["Field", "PageTrace", "StatusPage", "signal_at_parents_end", "watch_parent"]


class Field(IntEnum):
    BEAT = 0  # counts up while the process is alive
    LANE = 1  # the shard of a branch being worked on, -1 while idle or starting
    INDEX = 2  # the item of it being made, or the first of several
    COUNT = 3  # how many items were begun together
    NODE = 4  # the number of the node at work, -1 if not traced
    BEGUN = 5  # when it was begun, in monotonic ns; 0 while it is not: on the way there, or waiting for what it needs
    AGAIN = 6  # how many items were made again, on the way to where something stood
    EACH = 7  # 1: each item is begun by itself, since somebody looks how long it takes


_SIZE = len(Field) + TimeSheet.SIZE
_LANE, _INDEX, _COUNT, _BEGUN = int(Field.LANE), int(Field.INDEX), int(Field.COUNT), int(Field.BEGUN)
_AGAIN, _EACH = int(Field.AGAIN), int(Field.EACH)


class StatusPage(SharedFile):
    """``page[Field.INDEX]`` reads or writes a field; ``times`` says what the process does, ``sheet`` what of its
    ``nodes`` take.
    """

    def __init__(self, fd: int | None = None, *, nodes: int = 0) -> None:
        size_bytes = 8 * (_SIZE + nodes * NodeSheet.STRIDE) if fd is None else os.fstat(fd).st_size
        super().__init__("torchpipe-page", size_bytes, "q", fd)
        self._fields = self.view
        self.times = TimeSheet(self.view[len(Field) : _SIZE])
        self.sheet = NodeSheet(self.view[_SIZE:])
        if fd is None:
            self.clear()

    def close(self) -> None:
        self.times.close()
        self.sheet.close()
        super().close()

    def __getitem__(self, field: int) -> int:
        return self._fields[field]

    def __setitem__(self, field: int, value: int) -> None:
        self._fields[field] = value

    def clear(self) -> None:
        """The position of a worker that has not begun anything."""
        for field, value in zip(Field, (0, -1, 0, 1, -1, 0, 0)):
            self._fields[field] = value

    def making(self, lane: int, index: int, count: int) -> int:
        """``count`` items from ``index`` on of ``lane`` are being made from now on; or one, if each is looked at."""
        fields = self._fields
        if fields[_EACH]:
            count = 1
        fields[_BEGUN] = 0  # whoever dies in between has begun neither the ones nor the others
        fields[_INDEX] = index
        fields[_COUNT] = count
        fields[_LANE] = lane
        fields[_BEGUN] = time.monotonic_ns()
        return count

    def skipping_to(self, lane: int, index: int) -> None:
        """``lane`` is being brought to item ``index``, which is not begun yet."""
        self._fields[_BEGUN] = 0
        self._fields[_INDEX] = index
        self._fields[_COUNT] = 1
        self._fields[_LANE] = lane

    def remade(self) -> None:
        """An item before that one was made again."""
        self._fields[_AGAIN] += 1

    def idle(self) -> None:
        """Nothing is being made."""
        self._fields[_LANE] = -1

    @property
    def step(self) -> tuple[int, ...] | None:
        """Another value with each thing that the process begins; None while it waits for somebody else."""
        since = self.times.at_work_since
        return None if since is None else (since, self._fields[_BEGUN], self._fields[_AGAIN])

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile, what is being made waits for something from elsewhere: it cannot be what kills its process."""
        begun = self._fields[_BEGUN]
        self._fields[_BEGUN] = 0
        self.times.turn_to(AWAITING_INPUT)
        try:
            yield
        finally:
            self.times.turn_to(MAKING)
            self._fields[_BEGUN] = time.monotonic_ns() if begun else 0

    def trace(self, *, note_steps: bool) -> Trace | None:
        """The trace of each node at work: with ``note_steps`` to name a culprit; else to time nodes, if wanted."""
        if note_steps:
            return PageTrace(self)
        return Tracing(self.sheet) if self.times.wanted else None


class PageTrace:
    """Notes the node at work on a page, at a cost for every item of every node: for naming a culprit."""

    def __init__(self, page: StatusPage) -> None:
        self._page = page

    def watch(self, stream: Iterator[Any], node_id: int) -> Iterator[Any]:
        page = self._page
        try:
            while True:
                outer, page[Field.NODE] = page[Field.NODE], node_id
                try:
                    item = next(stream)
                except StopIteration:
                    return
                finally:
                    page[Field.NODE] = outer
                yield item
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()

    def plain(self, stream: Iterator[Any]) -> Iterator[Any]:
        """It is watched to its end."""
        return stream

    def left_out(self, node_id: int) -> None:
        """Nobody is to blame."""


_PR_SET_PDEATHSIG = 1
_POLL_S = 0.25


def signal_at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the *thread* that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def watch_parent(parent_pid: int, page: StatusPage, *, death_signal: bool) -> None:
    """End this process when process ``parent_pid`` does; meanwhile, twice a second, count up ``page[Field.BEAT]`` and
    note CPU time and memory.

    With ``death_signal`` the kernel also kills this process when the *thread* that started it ends, which helps where
    native code keeps the interpreter lock for ever: set it only if that thread lives as long as its process.
    """
    if death_signal:
        signal_at_parents_end(signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent_pid, page), name="torchpipe-parent", daemon=True).start()


def _watch(parent_pid: int, page: StatusPage) -> None:
    try:
        handle = pidfd_of(parent_pid)
    except ProcessLookupError:
        _end()
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while not poller.poll(_POLL_S * 1000):
        page[Field.BEAT] += 1
        page.times.publish()
    _end()


def _end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
