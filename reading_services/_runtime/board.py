"""A page of shared memory where each worker notes what it is doing. The main process reads it, also after a death.

The main process makes one board for each worker and owns it: an anonymous file, unlinked at once, mapped by both sides,
so nothing is left behind whoever dies. Five 64-bit integers; one writer for each, so no locks. Imports nothing.
"""

from __future__ import annotations

import mmap
import multiprocessing.reduction
import os
import tempfile
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

__all__ = ["Board", "BoardTrace", "Slot"]


class Slot(IntEnum):
    BEAT = 0  # counts up while the process is alive
    LANE = 1  # the shard of a branch being worked on, -1 while idle or starting
    INDEX = 2  # the item of it being made, or the first of several
    COUNT = 3  # how many items were begun together
    NODE = 4  # the number of the node at work, -1 if not traced


_SIZE_BYTES = 8 * len(Slot)


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
        for slot, value in ((Slot.BEAT, 0), (Slot.LANE, -1), (Slot.INDEX, 0), (Slot.COUNT, 1), (Slot.NODE, -1)):
            self._slots[slot] = value

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
