"""Figures of the nodes that a process runs, as 64-bit integers, perhaps in shared memory: written there, read here.

Like ``sheet``: one writer, no locks, no messages.
"""

from __future__ import annotations

from torchpipe.stats.sheet import Cells

__all__ = ["BYTES", "ERRORS", "ITEMS", "SELF_NS", "SIZED", "SKIPPED", "Figures", "NodeSheet", "bucket_of"]

SELF_NS, ITEMS, ERRORS, SKIPPED, BYTES, SIZED, _HISTOGRAM = range(7)  # SIZED items have so many bytes

# Self times fall into buckets, eight for each power of two. A quantile is the upper end of one: an eighth too much at
# most, and never less than what the items took.
_LEAST_BITS, _MOST_BITS = 7, 43  # under 0.1 us, over an hour
_PARTS = 8
_BUCKETS = _PARTS * (_MOST_BITS - _LEAST_BITS + 1)


def bucket_of(nanoseconds: int) -> int:
    """The index of a duration among a node's cells."""
    bits = nanoseconds.bit_length()
    if bits <= _LEAST_BITS:
        return _HISTOGRAM + _PARTS - 1
    if bits > _MOST_BITS:
        return _HISTOGRAM + _BUCKETS - 1
    return _HISTOGRAM + _PARTS * (bits - _LEAST_BITS) + ((nanoseconds >> (bits - 4)) & (_PARTS - 1))


def _value_of(bucket: int) -> float:
    """The upper end of a bucket, in seconds."""
    power, part = divmod(bucket, _PARTS)
    least = 1 << (power + _LEAST_BITS - 1)
    return least * (1 + (part + 1) / _PARTS) / 1e9


class Figures:
    """A node's figures, to add and to subtract."""

    __slots__ = ("cells",)

    def __init__(self, cells: list[int] | None = None) -> None:
        self.cells = [0] * NodeSheet.STRIDE if cells is None else cells

    def add(self, other: Figures, sign: int = 1) -> None:
        self.cells = [mine + sign * theirs for mine, theirs in zip(self.cells, other.cells)]

    def __getitem__(self, cell: int) -> int:
        return max(0, self.cells[cell])

    def quantile(self, part: float) -> float | None:
        """The self time in seconds that ``part`` of the items stayed under; None if none was timed."""
        counts = self.cells[_HISTOGRAM:]
        wanted, seen = part * sum(counts), 0
        for bucket, count in enumerate(counts):
            seen += count
            if count and seen >= wanted:
                return _value_of(bucket)
        return None


class NodeSheet:
    """``nodes`` of them, by their numbers in the process; all zero at first. ``cells`` may be written by the owner."""

    STRIDE = _HISTOGRAM + _BUCKETS

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        self.nodes = len(cells) // self.STRIDE

    @classmethod
    def local(cls, nodes: int) -> NodeSheet:
        """In this process's own memory."""
        return cls([0] * (nodes * cls.STRIDE))

    def note(self, node: int, nanoseconds: int, items: int = 1) -> None:
        """``items`` of ``node`` were made in so long."""
        cells, base = self.cells, node * self.STRIDE
        cells[base + SELF_NS] += nanoseconds
        cells[base + ITEMS] += items
        cells[base + bucket_of(nanoseconds // items)] += items

    def count(self, node: int, cell: int, more: int = 1) -> None:
        self.cells[node * self.STRIDE + cell] += more

    def read(self) -> list[Figures]:
        """A copy of all. Raises: ValueError if its memory is gone."""
        cells, stride = list(self.cells), self.STRIDE
        return [Figures(cells[node * stride : (node + 1) * stride]) for node in range(self.nodes)]

    def close(self) -> None:
        """Let go of the memory, where it is shared. Idempotent."""
        if isinstance(self.cells, memoryview):
            self.cells.release()
