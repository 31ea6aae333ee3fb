"""The way of a ``DataLoader``'s batches to a device, ahead of the loop, or to pinned memory. In the user's process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchpipe.ahead.background import RunAhead
from torchpipe.data.batches import Batches
from torchpipe.device.prepare import stage_for
from torchpipe.execution.clock import Clock
from torchpipe.state import SnapshotPolicy, decode
from torchpipe.stats import StageStats

__all__ = ["DeviceStage", "pinned_for"]


def pinned_for(loader: Any) -> str | None:
    """The device to pin for, if that is asked for and possible; else, it says so as torch's loader does."""
    if not loader.pin_memory or loader.device is not None:  # the device stage pins what it moves
        return None
    if loader.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{loader.pin_memory_device}'.",
            stacklevel=5,
        )
    if not torch.accelerator.is_available():
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, "
            "then device pinned memory won't be used.",
            stacklevel=5,
        )
        return None
    device = torch.accelerator.current_accelerator()
    if device is None or device.type == "mps":
        warnings.warn(
            "'pin_memory' argument is set as true but not supported on MPS now, device pinned memory won't be used.",
            stacklevel=5,
        )
        return None
    return device.type


class DeviceStage(Batches):
    """The device stage: batches are taken ahead of the loop, in threads, and moved; without workers, when asked for."""

    def __init__(self, loader: Any, batches: Batches) -> None:
        backend, options = loader._device_backend, loader._device_options
        self._start = {"number": batches.number, "batches": batches.position()}
        stage = stage_for(backend, options, "DataLoader")
        if not loader.num_workers:  # batches are made under global random states of their own, which no thread can have
            stage = replace(stage, depth=0)
        self._batches = batches
        policy = SnapshotPolicy(every=1)  # small, and the order has its own
        self._stage, self._name = stage, f"to {options.device}"
        self._ahead = RunAhead(_Source(batches), stage, policy, "DataLoader")
        self._items = self._ahead.items()
        self.hand, self.clock = [], Clock()
        self._before = self._behind = self._ahead.cursor.snapshot  # where the batches stood: the one in hand

    @property
    def number(self) -> int:
        return int(self._position()["number"])

    def position(self) -> dict[str, Any]:
        return self._position()["batches"]  # type: ignore[no-any-return]

    def _position(self) -> dict[str, Any]:
        snapshot = self._before if self.hand else self._behind
        state: Any = self._start if snapshot is None else decode(snapshot, allow_pickle=True)  # it was made here
        return state  # type: ignore[no-any-return]

    def fill(self) -> list[Any]:
        self._before = self._behind
        self.clock.begin_wait()
        self._batches.deal_more()
        batch = next(self._items)
        self.hand.append(batch)
        self._behind = self._ahead.cursor.snapshot
        self.clock.end_wait(1)
        return self.hand

    def interrupt(self) -> None:
        self._ahead.interrupt()

    def stats(self) -> StageStats:
        threads = self._stage.limits.threads if self._stage.depth else 0
        return StageStats(name=self._name, node=0, device=True, threads=threads, feed=self._ahead.stats())

    def close(self) -> None:
        self._ahead.close()


class _Source:
    """The batches that the device stage takes ahead; a failure is an item, and raised when it is handed out."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def items(self) -> Iterator[Any]:
        while True:
            try:
                batch = self._batches.ready().pop()
            except StopIteration:
                return
            yield batch

    def state_dict(self) -> dict[str, Any]:
        position = self._batches.position()
        return {"number": self._batches.number, "batches": position}

    def interrupt(self) -> None:
        self._batches.interrupt()

    def close(self) -> None:
        return
