"""The sheet on which a process, or a thread, notes its time: 64-bit integers, perhaps in shared memory.

Written by its process or thread, read by any other, also after a death; no locks, and no messages. A reader may come
between two writes, and then be wrong by the last step.
"""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import Literal, TypeAlias, get_args

from torchpipe.machine.memory import private_bytes, resident_bytes

__all__ = [
    "AWAITING_CREDIT",
    "AWAITING_INPUT",
    "IDLE",
    "MAKING",
    "SENDING",
    "STARTING",
    "Doing",
    "TimeSheet",
    "Times",
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
