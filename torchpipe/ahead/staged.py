"""A feed with two queues: one thread pulls batches into the first, one or more move them into the second, in order.

Runs in the consumer's process. For streams of batches: every step takes the lock.

    source -> [pulling thread] -> waiting (host) -> [transfer threads] -> done -> ready (device) -> consumer
                                  host_depth                              depth, over the three parts after waiting

Each batch has a number, counted at the pull. Transfer threads take batches in the order of their numbers and finish
in any; ``done`` holds what is finished too early, so ``ready`` is in order. A failure is an entry with a number too,
and whatever has a higher number is forgotten. The batch with the lowest number is always moving or moved: no wait for
another is circular.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from torchpipe.ahead.feed import Admitted, Feed, Gate, Mover, Queued, Snapshots, Source, mark_feed_thread, move

__all__ = ["Limits", "StagedFeed"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far the parts of a device stage may run ahead, besides the depth of its device queue.

    ``host_depth`` batches may wait on the host; with 0, one is pulled only when there is room on the device. A queue
    whose batches have reached its bytes takes no more; a batch that is larger than that passes alone. ``threads``
    transfer at the same time.
    """

    host_depth: int = 0
    host_bytes: int | None = None
    device_bytes: int | None = None
    threads: int = 1

    @property
    def staged(self) -> bool:
        """Does this take two queues? Else one thread pulls and moves."""
        return self != Limits()


@dataclass(frozen=True, slots=True)
class _End:
    """In ``done``: the stream ends here, with ``error`` if there is one."""

    error: BaseException | None = None


class StagedFeed(Feed):
    """See the file's head. All fields are used with the lock held."""

    def __init__(
        self,
        source: Source,
        depth: int,
        mover: Mover,
        snapshots: Snapshots,
        name: str,
        gate: Gate | None,
        limits: Limits,
    ) -> None:
        super().__init__(source, depth, mover, snapshots, name, gate)
        self._limits = limits
        self._mover: Mover = mover
        self._movers: list[threading.Thread] = []
        self._living = 0  # threads that have not said that they end
        self._pulling = False
        self._waiting: deque[tuple[int, Admitted, bytes | None]] = deque()
        self._waiting_bytes = 0
        self._done: dict[int, Queued | _End] = {}
        self._next = 0  # the number whose turn it is to become ready
        self._end_at: int | None = None  # the number after the last batch, once it is known
        self._on_device = 0  # moving, done or ready
        self._device_bytes = 0

    def start(self) -> None:
        self._living = 1 + self._limits.threads
        super().start()
        self._movers = [
            self._start_thread(self._run_transfers, f" transfer {number}") for number in range(self._limits.threads)
        ]

    def threads(self) -> list[threading.Thread]:
        return super().threads() + self._movers

    @property
    def lost(self) -> bool:
        with self.changed:
            alive = sum(thread.is_alive() for thread in self.threads())
            return not self.ended and alive < self._living

    @property
    def pulling(self) -> bool:
        return self._pulling

    def _run(self) -> None:
        self._pulling = True
        try:
            self._live(self._pull_into_waiting)
        finally:
            self._pulling = False

    def _run_transfers(self) -> None:
        self._live(self._transfer_all)

    def _live(self, work: Callable[[], None]) -> None:
        """A thread's life. The last one to end closes the source, if nobody else will."""
        mark_feed_thread()
        try:
            work()
        except BaseException as error:
            # After stop() nobody wants to know; and the collector may have called that in the midst of an update.
            if not self.stopping:
                self._end(self._next, error)
        with self.changed:
            self._living -= 1
            close = self.stopping and not self._living
            self.changed.notify_all()
        if close:
            self._close_in_thread()

    def _pull_into_waiting(self) -> None:
        index = 0
        error: BaseException | None = None
        try:
            for admitted in self._admitted():
                snapshot = self._snapshots.after_item()
                with self.changed:
                    if self.stopping or self._end_at is not None:
                        return
                    self._waiting.append((index, admitted, snapshot))
                    self._waiting_bytes += admitted.nbytes
                    self.changed.notify_all()
                del admitted
                index += 1
        except BaseException as caught:
            error = caught
        self._end(index, error)

    def _wait_for_room(self) -> bool:
        with self.changed:
            if not self._has_room() and not self._over:
                began = time.perf_counter()
                self.feeder_waits = True
                while not self._has_room() and not self._over:
                    self.changed.wait()
                self.feeder_waits = False
                self.wait_s += time.perf_counter() - began
            return not self._over

    @property
    def _over(self) -> bool:
        """Is there nothing more to pull?"""
        return self.stopping or self._end_at is not None

    def _has_room(self) -> bool:
        waiting, limits = len(self._waiting), self._limits
        if waiting >= max(1, limits.host_depth):
            return False
        if waiting and limits.host_bytes is not None and self._waiting_bytes >= limits.host_bytes:
            return False
        return limits.host_depth > 0 or (waiting + self._on_device < self._depth and self._device_takes(0))

    def _device_takes(self, nbytes: int) -> bool:
        budget = self._limits.device_bytes
        if self._on_device and budget is not None and self._device_bytes + max(1, nbytes) > budget:
            return False
        return self._on_device < self._depth

    def _transfer_all(self) -> None:
        while (job := self._wait_for_job()) is not None:
            number, admitted, snapshot = job
            item, admitted.item = admitted.item, None
            began = time.perf_counter()
            try:
                moved = move(self._mover.transfer, item, admitted.number, self.name)
            except BaseException as error:
                self._end(number, error)
                continue
            finally:
                del item, job
            spent = time.perf_counter() - began
            with self.changed:
                self.transfer_s += spent
                self.moved_bytes += admitted.nbytes
                if not self._is_void(number):
                    self._done[number] = (moved, snapshot, admitted)
                    self._make_ready()
            del moved, admitted, snapshot

    def _wait_for_job(self) -> tuple[int, Admitted, bytes | None] | None:
        """The next batch, once the device has room for it; None to end."""
        with self.changed:
            while not self.stopping:
                if self._waiting and self._device_takes(self._waiting[0][1].nbytes):
                    job = self._waiting.popleft()
                    self._waiting_bytes -= job[1].nbytes
                    self._on_device += 1
                    self._device_bytes += job[1].nbytes
                    self.changed.notify_all()  # there is room on the host
                    return job
                if not self._waiting and self._end_at is not None:
                    return None
                self.changed.wait()
            return None

    def _is_void(self, number: int) -> bool:
        return self.stopping or (self._end_at is not None and number >= self._end_at)

    def _end(self, number: int, error: BaseException | None) -> None:
        """The stream ends before batch ``number``, unless it ends earlier still."""
        with self.changed:
            if self._is_void(number):
                return
            self._end_at = number
            for later in [other for other in list(self._done) if other >= number]:
                del self._done[later]
            while self._waiting and self._waiting[-1][0] >= number:
                self._waiting_bytes -= self._waiting.pop()[1].nbytes
            self._done[number] = _End(error)
            self._make_ready()

    def _make_ready(self) -> None:
        while (entry := self._done.pop(self._next, None)) is not None:
            if isinstance(entry, _End):
                self.error = entry.error
                self.ended = True
                break
            self.ready.append(entry)
            self._next += 1
        self.changed.notify_all()

    def taken(self, entry: Admitted) -> None:
        with self.changed:
            self._on_device -= 1
            self._device_bytes -= entry.nbytes
            self.changed.notify_all()

    def depths(self) -> tuple[int, int, int, int]:
        with self.changed:
            return len(self._waiting), self._waiting_bytes, self._on_device, self._device_bytes

    def _forget(self) -> None:
        super()._forget()
        self._waiting.clear()
        self._done.clear()
