"""When the device is given its work, and when it is waited for: the one place that calls a backend's ``sync``.

Runs in the consumer's thread, between two batches.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torchpipe.ahead.feed import in_feed_thread
from torchpipe.device.backend import Backend
from torchpipe.device.options import DeviceOptions

__all__ = ["DevicePace", "Synchronous", "pace_for"]


@runtime_checkable
class Synchronous(Protocol):
    """The methods that ``sync="loader"`` and ``wait_every`` need of a backend."""

    def sync(self) -> None:
        """Start the work that the consumer's thread has recorded for the device; do not wait for it."""

    def wait(self) -> None:
        """Wait until the device has done all work that was started."""


class DevicePace:
    """Starts the work of each ``group`` batches together, once the consumer is done with the last of them.

    So all groups are equal and compile once; the end of the stream starts what is left over. With ``wait_every`` the
    consumer waits for the device after every so many batches: a loop that never reads a result back would otherwise
    run ahead of the device without a bound.
    """

    def __init__(self, backend: Synchronous, *, sync: bool, group: int, wait_every: int | None) -> None:
        self.syncs = 0
        self.waits = 0
        self._backend = backend
        self._group = group if sync else 0
        self._wait_every = wait_every
        self._steps = 0

    def begin(self) -> None:
        if in_feed_thread():
            raise RuntimeError(
                "the device stage with sync='loader' or wait_every is read by a thread that runs ahead, which would "
                "start the work of a training step that is only half recorded: put to_device() after prefetch(), not "
                "before it, and use no prefetch_cnt"
            )

    def returned(self) -> None:
        self._steps += 1
        if self._group and self._steps % self._group == 0:
            self._sync()
        if self._wait_every and self._steps % self._wait_every == 0:
            self._backend.wait()
            self.waits += 1

    def ended(self) -> None:
        if self._group and self._steps % self._group:
            self._sync()

    def _sync(self) -> None:
        self._backend.sync()
        self.syncs += 1


def pace_for(backend: Backend, options: DeviceOptions) -> DevicePace | None:
    """The pace that tells ``backend`` when to work; None if ``options`` do not ask for one."""
    if options.sync == "none" and options.wait_every is None:
        return None
    assert isinstance(backend, Synchronous)  # resolve() has seen to it
    return DevicePace(
        backend, sync=options.sync == "loader", group=options.batches_per_execution, wait_every=options.wait_every
    )
