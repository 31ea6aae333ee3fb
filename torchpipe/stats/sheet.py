"""The sheet on which a process, or a thread, notes its time: 64-bit integers, perhaps in shared memory.

Written by its process or thread, read by any other, also after a death; no locks, and no messages. A reader may come
between two writes, and then be wrong by the last step.

Figures of the nodes that a process runs, as 64-bit integers, perhaps in shared memory: written there, read here.

That has one writer too, no locks and no messages.

The bytes of a node's items, as a sample of them says. Runs wherever items are made and measured.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias, get_args

from torchpipe.machine import bytes_of, private_bytes, resident_bytes

__all__ = [
    "AWAITING_CREDIT",
    "AWAITING_INPUT",
    "BYTES",
    "ERRORS",
    "IDLE",
    "ITEMS",
    "MAKING",
    "NEVER",
    "SELF_NS",
    "SENDING",
    "SIZED",
    "SKIPPED",
    "STARTING",
    "Doing",
    "Figures",
    "NodeSheet",
    "Sizing",
    "TimeSheet",
    "Times",
    "bucket_of",
]

Doing: TypeAlias = Literal["starting", "making", "sending", "awaiting credit", "awaiting input", "idle", "ended"]
"""The work of a process: ``making`` items; ``sending`` them; ``awaiting credit``, since the consumer has not used up
what was sent; ``awaiting input`` that another process deals; ``idle`` between two epochs."""

Cells: TypeAlias = "MutableSequence[int] | memoryview[int]"

_NAMES = get_args(Doing)
STARTING, MAKING, SENDING, AWAITING_CREDIT, AWAITING_INPUT, IDLE, _ENDED = range(len(_NAMES))
_WORK = (STARTING, MAKING, SENDING)

_DOING, _SINCE, _CPU, _MEMORY, _PRIVATE, _PRIVATE_AT_FIRST, _WANTED, _MADE, _SENT, _SPENT = range(10)
_PRIVATE_EVERY_S = 10.0  # the kernel looks at each page: some 10 ms for a gigabyte


class Times:
    """The time spent in each way, in ns, and the present way: a copy of a :class:`TimeSheet`, to add and subtract."""

    __slots__ = (
        *("cpu_ns", "doing", "doing_ns", "made", "memory_bytes"),
        *("private_at_first_bytes", "private_bytes", "sent", "spent"),
    )

    def __init__(self, spent: list[int] | None = None, cpu_ns: int = 0, made: int = 0, sent: int = 0) -> None:
        self.spent = [0] * len(_NAMES) if spent is None else spent
        self.cpu_ns = cpu_ns
        self.made = made  # items
        self.sent = sent  # bytes
        self.doing: Doing = "ended"
        self.doing_ns = 0
        self.memory_bytes = self.private_bytes = self.private_at_first_bytes = 0

    def add(self, other: Times, sign: int = 1) -> None:
        self.spent = [mine + sign * theirs for mine, theirs in zip(self.spent, other.spent)]
        self.cpu_ns += sign * other.cpu_ns
        self.made += sign * other.made
        self.sent += sign * other.sent

    def seconds(self, doing: int) -> float:
        return max(0, self.spent[doing]) / 1e9


class TimeSheet:
    """The cells of one process; ``SIZE`` of them, zero at first."""

    SIZE = _SPENT + len(_NAMES)

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._cpu_before_ns: int | None = None  # what starting took: importing, and so on
        self._private_at_s: float | None = None  # when it was last looked at

    def turn_to(self, doing: int) -> None:
        """The process does this from now on."""
        cells, now = self._cells, time.monotonic_ns()
        since = cells[_SINCE]
        cells[_SINCE] = now
        if since:
            cells[_SPENT + cells[_DOING]] += now - since
        cells[_DOING] = doing

    def count(self, items: int) -> None:
        """So many more were made."""
        self._cells[_MADE] += items

    def send(self, size_bytes: int) -> None:
        """So much was sent."""
        self._cells[_SENT] += size_bytes

    def close(self) -> None:
        """Let go of the memory, where it is shared. Idempotent."""
        if isinstance(self._cells, memoryview):
            self._cells.release()

    def count_cpu(self) -> None:
        """CPU time counts from here on, if it did not yet."""
        if self._cpu_before_ns is None:
            self._cpu_before_ns = time.process_time_ns()

    def publish(self) -> None:
        """Note CPU time and memory. Takes some 20 us, each 10 s longer: at an end, and by a thread that looks after
        something else.
        """
        if self._cpu_before_ns is not None:
            self._cells[_CPU] = time.process_time_ns() - self._cpu_before_ns
        self._cells[_MEMORY] = resident_bytes()
        now = time.monotonic()
        if self._private_at_s is None or now - self._private_at_s >= _PRIVATE_EVERY_S:
            self._cells[_PRIVATE] = private = private_bytes()
            if self._private_at_s is None:
                self._cells[_PRIVATE_AT_FIRST] = private
            self._private_at_s = now

    @property
    def wanted(self) -> bool:
        """True if the reader wants figures of nodes."""
        return bool(self._cells[_WANTED])

    @wanted.setter
    def wanted(self, value: bool) -> None:
        self._cells[_WANTED] = int(value)

    @property
    def at_work_since(self) -> int | None:
        """When it has begun what it is at, in monotonic ns; None while it waits for somebody else."""
        return self._cells[_SINCE] if self._cells[_DOING] in _WORK else None

    def read(self) -> Times:
        """The sheet's content now, with the time under way. Raises: ValueError if its memory is gone."""
        cells = list(self._cells)
        times = Times(cells[_SPENT : _SPENT + len(_NAMES)], cells[_CPU], cells[_MADE], cells[_SENT])
        doing = cells[_DOING] if 0 <= cells[_DOING] < len(_NAMES) else IDLE
        times.doing = _NAMES[doing]
        times.doing_ns = max(0, time.monotonic_ns() - cells[_SINCE]) if cells[_SINCE] else 0
        times.spent[doing] += times.doing_ns
        times.memory_bytes, times.private_bytes = cells[_MEMORY], cells[_PRIVATE]
        times.private_at_first_bytes = cells[_PRIVATE_AT_FIRST]
        return times


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


NEVER = 1 << 62
_SHARE = 1000  # a look may take so small a part of the time that items take
_MOST_STEP = 1024  # items between two looks
_EACH = 32  # items at first are all looked at: short epochs are known exactly
_MOST_IN_VAIN = 16  # looks, all of them


class Sizing:
    """Looks at an item of a node now and then, and notes its size for those since the last look."""

    def __init__(self, sheet: NodeSheet, node: int) -> None:
        self._sheet = sheet
        self._node = node
        self._step = 1
        self._in_vain = self._looks = 0
        self._looked_ns = perf_counter_ns()

    def look(self, item: Any) -> int:
        """Note the size of ``item``, if it has one: how many items further on the next one is to be shown."""
        began, step = perf_counter_ns(), self._step
        size = bytes_of(item)
        if size is not None:
            self._sheet.count(self._node, BYTES, size * step)
            self._sheet.count(self._node, SIZED, step)
        if not size:
            self._in_vain += 1
            if self._in_vain == _MOST_IN_VAIN:
                return NEVER
        elif self._in_vain:
            self._in_vain = -NEVER  # there are some that have one
        now = perf_counter_ns()
        item_ns, self._looked_ns = (began - self._looked_ns) // step, now
        self._looks += 1
        if self._looks < _EACH:
            return 1
        # By what items have taken until now, and not by what this one is: large ones are not preferred
        self._step = max(1, min(_MOST_STEP, 2 * step, _SHARE * (now - began) // (item_ns + 1)))
        return self._step
