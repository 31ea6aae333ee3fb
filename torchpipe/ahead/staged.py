"""A feed with two queues: one thread pulls batches into the first, one or more move them into the second, in order.

Runs in the consumer's process. For streams of batches: every step takes the lock.

    source -> [pulling thread] -> waiting (host) -> [transfer threads] -> moving -> ready (device) -> consumer
                                  host_depth                              depth, of both after waiting

Transfer threads take batches in the order of the stream, which ``moving`` keeps, and finish in any: the first one there
becomes ready when it is moved, then the next. A failure waits in its batch's place, and what comes after it is
forgotten. The first batch is always moving or moved: no wait for another is circular.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torchpipe.ahead.feed import Feed
from torchpipe.ahead.stage import Admitted

__all__ = ["StagedFeed"]


class StagedFeed(Feed):
    """See the file's head. All fields are used with the lock held."""

    staged = True

    def _works(self) -> list[tuple[str, Callable[[], None]]]:
        transfers = [(f" transfer {number}", self._run_transfers) for number in range(self.stage.limits.threads)]
        return super()._works() + transfers

    def _run_transfers(self) -> None:
        self._live(self._transfer_all)

    def _admit(self, admitted: Admitted) -> None:
        admitted.snapshot = self.snapshots.after_item()
        with self.lock:
            if not self.over:
                self.waiting.append(admitted)
                self.changed.notify_all()

    def _has_room(self) -> bool:
        limits = self.stage.limits
        with self.lock:
            waiting, on_device = len(self.waiting), len(self.moving) + len(self.ready)
            if waiting >= max(1, limits.host_depth):
                return False
            if waiting and limits.host_bytes is not None and self.depths()["waiting_bytes"] >= limits.host_bytes:
                return False
            return limits.host_depth > 0 or (waiting + on_device < self.stage.depth and self._device_takes(0))

    def _device_takes(self, nbytes: int) -> bool:
        on_device, budget = len(self.moving) + len(self.ready), self.stage.limits.device_bytes
        if on_device and budget is not None and self.depths()["ready_bytes"] + max(1, nbytes) > budget:
            return False
        return on_device < self.stage.depth

    def _transfer_all(self) -> None:
        while (admitted := self._next_to_move()) is not None:
            began = time.perf_counter()
            try:
                admitted.item = self._moved(admitted)
            except BaseException as error:
                with self.lock:
                    self._fail(admitted, error)
            with self.lock:
                if admitted.error is None:
                    self._count(admitted, began)
                admitted.moved = True
                self._settle()
            del admitted

    def _next_to_move(self) -> Admitted | None:
        """The next batch, once the device has room for it; None to end."""
        with self.lock:
            while not self.stopping:
                if self.waiting and self._device_takes(self.waiting[0].nbytes):
                    admitted = self.waiting.popleft()
                    self.moving.append(admitted)
                    self.changed.notify_all()  # there is room on the host
                    return admitted
                if not self.waiting and (self.over or not self.pulling):
                    return None
                self.changed.wait()
            return None

    def _fail(self, admitted: Admitted, error: BaseException) -> None:
        """The stream ends at this batch, unless it ends earlier still."""
        if admitted in self.moving:
            while self.moving[-1] is not admitted:
                self.moving.pop()
            self.waiting.clear()
            self.over = True
            admitted.error = error

    def _settle(self) -> None:
        """Make ready what is moved, up to the first that is not; the stream ends after its last, or at a failure."""
        while self.moving and self.moving[0].moved:
            admitted = self.moving.popleft()
            if admitted.error is None:
                item, admitted.item = admitted.item, None
                self.ready.append((item, admitted.snapshot, admitted))
            else:
                self.error = admitted.error
        if (self.over or not self.pulling) and not self.waiting and not self.moving:
            self.ended = True
        self.changed.notify_all()
