"""A page of shared memory where each worker notes what it is doing. The main process reads it, also after a death.

The main process makes one board for each worker and owns it: an anonymous file, unlinked at once, mapped by both sides,
so nothing is left behind whoever dies. Six 64-bit integers; one writer for each, so no locks. Imports nothing.
"""

from __future__ import annotations

import mmap
import multiprocessing.reduction
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

__all__ = ["Board", "BoardTrace", "Slot"]


class Slot(IntEnum):
    BEAT = 0  # counts up while the process is alive
    LANE = 1  # the shard of a branch being worked on, -1 while idle or starting
    INDEX = 2  # the item of it being made, or the first of several
    COUNT = 3  # how many items were begun together
    NODE = 4  # the number of the node at work, -1 if not traced
    BEGUN = 5  # when it was begun, in monotonic ns; 0 while it is not: on the way there, or waiting for what it needs


_SIZE_BYTES = 8 * len(Slot)
_LANE, _INDEX, _COUNT, _BEGUN = int(Slot.LANE), int(Slot.INDEX), int(Slot.COUNT), int(Slot.BEGUN)


class Board:
    """``board[Slot.INDEX]`` reads or writes a slot. Passed to a process as an argument under every start method."""

    def __init__(self, fd: int | None = None) -> None:
        fresh = fd is None
        if fd is None:
            with tempfile.TemporaryFile(prefix="torchpipe-board-") as file:
                file.write(bytes(_SIZE_BYTES))  # not only sized: a full disk is an error here, and SIGBUS later
                file.flush()
                fd = os.dup(file.fileno())
        self._fd = fd
        self._map = mmap.mmap(fd, _SIZE_BYTES)
        self._slots = memoryview(self._map).cast("q")
        if fresh:
            self.clear()

    def __getitem__(self, slot: int) -> int:
        return self._slots[slot]

    def __setitem__(self, slot: int, value: int) -> None:
        self._slots[slot] = value

    def clear(self) -> None:
        """The position of a worker that has not begun anything."""
        for slot, value in zip(Slot, (0, -1, 0, 1, -1, 0)):
            self._slots[slot] = value

    def begin(self, lane: int, index: int, count: int) -> None:
        """``count`` items from ``index`` on of ``lane`` are being made from now on."""
        slots = self._slots
        slots[_BEGUN] = 0  # whoever dies in between has begun neither the ones nor the others
        slots[_INDEX] = index
        slots[_COUNT] = count
        slots[_LANE] = lane
        slots[_BEGUN] = time.monotonic_ns()

    def approach(self, lane: int, index: int) -> None:
        """``lane`` is being brought to item ``index``, which is not begun yet."""
        self._slots[_BEGUN] = 0
        self._slots[_INDEX] = index
        self._slots[_COUNT] = 1
        self._slots[_LANE] = lane

    def rest(self) -> None:
        """Nothing is being made."""
        self._slots[_LANE] = -1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile, what is being made waits for something from elsewhere: it cannot be what kills its process."""
        begun = self._slots[_BEGUN]
        self._slots[_BEGUN] = 0
        try:
            yield
        finally:
            self._slots[_BEGUN] = time.monotonic_ns() if begun else 0

    def close(self) -> None:
        """Unmap the page on this side. Idempotent."""
        if self._fd >= 0:
            self._slots.release()
            self._map.close()
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> Any:
        return _from_duplicate, (multiprocessing.reduction.DupFd(self._fd),)


def _from_duplicate(duplicate: Any) -> Board:
    return Board(duplicate.detach())


class BoardTrace:
    """Notes the node at work on a board, at a cost for every item of every node: for naming a culprit."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def watch(self, stream: Iterator[Any], node_id: int) -> Iterator[Any]:
        board = self._board
        try:
            while True:
                outer, board[Slot.NODE] = board[Slot.NODE], node_id
                try:
                    item = next(stream)
                except StopIteration:
                    return
                finally:
                    board[Slot.NODE] = outer
                yield item
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
