"""The distance that a lane may run ahead of the consumer, and the number of items of its next chunk. Decisions alone.

Runs where chunks are made or asked for: in a worker process, and for an actor in the main process.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["ChunkSize", "Credit"]

_QUICK_CHUNKS = 10  # of items that are dealt, small and quickly made: so many chunks may be ahead in any case


@dataclass(frozen=True)
class ChunkSize:
    """The limits of a chunk of small items: bytes in all, bytes of its pickle, items."""

    nbytes: int
    pickle_bytes: int
    items: int = 4096


@dataclass(slots=True)
class Credit:
    """The credit of a lane. ``ahead`` has the sizes in bytes of the chunks that the consumer has not used up."""

    ahead: deque[int]
    limit: int = 1  # items of a chunk; the first is sent at once
    quick: bool = False  # True if the last chunk held several items

    def may_go_on(self, window: int, window_bytes: int, *, from_entries: bool, expected: int = 0) -> bool:
        """True if another chunk may be made, with ``expected`` on their way already, as large as the last one."""
        if from_entries and self.quick:  # how many items that may be is up to whoever deals
            window = max(window, _QUICK_CHUNKS)
        chunks = len(self.ahead) + expected
        if chunks >= window:
            return False
        return chunks < 2 or sum(self.ahead) + expected * (self.ahead[-1] if self.ahead else 0) < window_bytes

    def add(self, items: int, sizes: tuple[int, ...], most: ChunkSize) -> None:
        """A chunk of ``items`` was made, whose pickle and buffers have these sizes in bytes."""
        self.ahead.append(sum(sizes))
        self.quick = items > 1
        if items:
            fitting = items * min(most.nbytes / max(1, sum(sizes)), most.pickle_bytes / max(1, sizes[0]))
            self.limit = max(1, min(most.items, round(fitting)))

    def used(self, chunks: int) -> None:
        """The consumer has used up ``chunks``."""
        for _ in range(min(chunks, len(self.ahead))):
            self.ahead.popleft()
