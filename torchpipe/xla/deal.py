"""Deals one stream of batches to several devices: batch i to device ``i % n``, each read as its consumer pleases.

Runs in the feed threads of the devices and in the threads of their consumers.

Who owns what
    DealtEpoch  the host stage (a RunAhead over the loader), a queue a device, the counts, the marks
    Share       one device's part, as the source of the RunAhead that moves batches to that device

Whoever finds its queue empty reads the stream for all, one at a time, so no order of draining can deadlock: the queues
of devices that are behind grow meanwhile, which is reported. A *group* is n consecutive batches, one a device.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchpipe.ahead.background import RunAhead
from torchpipe.state import Cursor
from torchpipe.xla.loader_source import LoaderSource

__all__ = ["DeviceShare", "DevicesEpoch", "DevicesPosition", "Tail"]

_WAIT_S = 5.0

_log = logging.getLogger("torchpipe")


class Tail(enum.Enum):
    """The treatment of a last group that has too few batches for all devices."""

    DROP = "drop"
    PAD = "pad"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class DevicesPosition:
    """The batches received: every device had ``groups`` batches of the epoch, device j ``ahead[j]`` more.

    ``cursor`` leads the loader to the first batch that some device has not had. ``over``: the loops of
    all devices have ended, and the cursor leads to the next epoch.
    """

    cursor: Cursor
    groups: int
    ahead: tuple[int, ...]
    over: bool = False
    earlier: int = 0  # batches of the epoch that were received before, by another number of devices
    batches: int | None = None  # of the whole epoch, if its end has been seen: what devices received beyond, is padding

    @property
    def delivered(self) -> int:
        return self.earlier + self.groups * len(self.ahead) + sum(self.ahead)


class DevicesEpoch:
    """One epoch, dealt to ``len(start.ahead)`` devices from ``start`` on. Thread-safe.

    An error of the loader is raised to every device, after the batches that were read before it; with tails that are
    dropped or raised, after the last whole group.
    """

    def __init__(
        self,
        source: LoaderSource,
        host: RunAhead,
        start: DevicesPosition,
        tail: Tail,
        *,
        threaded: bool,
        report_at: int,
    ) -> None:
        count = len(start.ahead)
        self._source = source
        self._host = host
        self._stream = host.items()
        self._threaded = threaded  # the host stage has a thread
        self._tail = tail if count > 1 else Tail.DROP
        # Reentrant, since the garbage collector may call leave() in any thread, also in one that holds it. Taken by its
        # own name: a Condition takes it in Python code, where Ctrl-C would leave it taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = False  # some thread is reading the stream
        self._begun = False  # and has done so: with a host thread, that one closes the source
        self._closed = False
        self._queues: list[deque[Any]] = [deque() for _ in range(count)]
        self._group: list[Any] = []  # batches of a group that is not yet complete
        self._left = [False] * count
        self._ended = [False] * count  # whose consumer has seen the end
        self._over = False  # nothing more will come into the queues
        self._failed = False
        self._error: BaseException | None = None  # until all have left: its traceback leads here
        self._start = start
        self._first_group = start.groups
        self._earlier = start.earlier
        self._read = 0  # batches since start
        self._batches = start.batches
        self._any = False  # a device has received something since start
        self._assigned = [start.groups] * count  # batches of the epoch that were dealt, those not needed again included
        self._received = [start.groups + more for more in start.ahead]
        self._marks = [(start.groups, start.cursor)]  # the loader's cursor after so many groups; the oldest is needed
        self._report_at = [report_at] * count

    @property
    def count(self) -> int:
        return len(self._queues)

    def waiting(self) -> list[int]:
        """The number of batches that wait on the host for each device, because others were further."""
        with self._lock:
            return [len(queue) for queue in self._queues]

    def take(self, index: int) -> Any:
        """The next batch for device ``index``. Raises: StopIteration at the end; the loader's error."""
        queue = self._queues[index]
        while True:
            with self._lock:
                while not queue:
                    if self._left[index]:
                        raise StopIteration
                    if self._over:
                        raise StopIteration if self._error is None else self._error
                    if not self._reading:
                        break
                    self._changed.wait()
                else:
                    return queue.popleft()
                self._reading = self._begun = True
            try:
                self._read_one()
            finally:
                with self._lock:
                    self._reading = False
                    self._changed.notify_all()

    def _read_one(self) -> None:
        try:
            batch = next(self._stream)
        except StopIteration:
            self._end()
        except BaseException as error:
            with self._lock:
                self._over = self._failed = True
                if not all(self._left):
                    self._error = error
        else:
            self._deal(batch)

    def _deal(self, batch: Any) -> None:
        with self._lock:
            self._read += 1
            if self._tail is Tail.PAD:
                self._put(self._read % self.count - 1, batch)  # -1: the last
                self._group = [batch]
            else:
                self._group.append(batch)
                if len(self._group) == self.count:
                    for index, item in enumerate(self._group):
                        self._put(index, item)
                    self._group = []
            if self._read % self.count == 0:
                self._mark()

    def _put(self, index: int, batch: Any) -> None:
        index %= self.count
        self._assigned[index] += 1
        if self._left[index] or self._assigned[index] <= self._received[index]:
            return  # nobody wants it, or it was received before the restore
        queue = self._queues[index]
        queue.append(batch)
        if len(queue) >= self._report_at[index]:
            self._report_at[index] *= 2
            _log.warning(
                "%d batches wait on the host for device %d of %d, because others are that far ahead of it: drain the "
                "devices in turn to keep memory bounded",
                len(queue),
                index,
                self.count,
            )

    def _mark(self) -> None:
        cursor = self._host.cursor
        if cursor.snapshot is not self._marks[-1][1].snapshot:
            self._marks.append((self._first_group + self._read // self.count, cursor))

    def _end(self) -> None:
        with self._lock:
            short = self._read % self.count
            if short and self._tail is Tail.PAD:
                for index in range(short, self.count):
                    self._put(index, self._group[-1])
            if short and self._tail is Tail.RAISE:
                self._failed = True
                self._error = ValueError(
                    f"the last {short} of {self._read} batches are too few for {self.count} devices, and tail is "
                    '"raise": let the number of batches be a multiple, or choose tail="drop" or "pad"'
                )
            self._group = []
            self._over = True
            self._batches = self._first_group * self.count + self._read

    def received(self, index: int) -> None:
        """The consumer of device ``index`` has its next batch."""
        with self._lock:
            self._received[index] += 1
            self._any = True
            if len(self._marks) > 1:
                least = min(self._received)
                while len(self._marks) > 1 and self._marks[1][0] <= least:
                    del self._marks[0]

    def ended(self, index: int) -> None:
        """The loop over device ``index`` is over: its consumer has been told that no batch follows."""
        with self._lock:
            self._ended[index] = True

    def position(self) -> DevicesPosition:
        with self._lock:
            groups = min(self._received)
            ahead = tuple(count - groups for count in self._received)
            if all(self._ended) and not self._failed and self._source.end is not None:
                return DevicesPosition(Cursor(self._source.end), 0, (0,) * self.count, over=True)
            if not self._any:
                return self._start
            marked, cursor = self._marks[0]
            batches, whole = (groups - marked) * self.count, self._batches
            if whole is not None:  # padding is in nobody's stream
                batches = min(batches, whole - marked * self.count)
            return DevicesPosition(cursor.after(batches, None), groups, ahead, earlier=self._earlier, batches=whole)

    def leave(self, index: int) -> None:
        """Device ``index`` wants no more. Any thread, the collector included; does not wait."""
        with self._lock:
            self._left[index] = True
            self._queues[index].clear()
            idle = all(self._left) and not self._reading
            if all(self._left):
                self._error = None
            self._changed.notify_all()
        if not all(self._left):
            return
        if not self._over:
            self._host.interrupt()
        if idle and not (self._threaded and self._begun):
            self._source.close()

    def close(self) -> None:
        """End the stream for all. Idempotent. Waits at most 10 s, if the loader does not return."""
        for index in range(self.count):
            self.leave(index)
        self.close_if_left()

    def close_if_left(self) -> None:
        """End the stream if no device wants more. Idempotent. Waits at most 10 s, if the loader does not return."""
        with self._lock:
            if self._closed or not all(self._left):
                return
            self._closed = True
            idle = self._changed.wait_for(lambda: not self._reading, _WAIT_S)
        if idle:
            self._host.close()
        else:
            _log.warning(
                "the loader is still being read, %g s after its stream was to end: is it waiting for something? It is "
                "closed when it returns",
                _WAIT_S,
            )


class DeviceShare:
    """The part of ``deal`` for device ``index``: the source of that device's RunAhead, which never takes its state."""

    def __init__(self, deal: DevicesEpoch, index: int) -> None:
        self._deal = deal
        self._index = index

    def items(self) -> Iterator[Any]:
        deal, index = self._deal, self._index
        while True:
            try:
                batch = deal.take(index)
            except StopIteration:
                return
            yield batch
            del batch

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("the deal has the position")

    def interrupt(self) -> None:
        self._deal.leave(self._index)

    def close(self) -> None:
        self._deal.leave(self._index)
