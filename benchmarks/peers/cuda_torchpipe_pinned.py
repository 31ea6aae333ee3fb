"""``torchpipe.DataLoader`` with ``pin_memory=True``, and copies that do not block in the loop. For P8c."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.peers._copied import copied
from benchmarks.peers.torch_dataloader import Samples, arguments
from torchpipe import DataLoader

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job, device: str) -> None:
        self.device = device
        self.loader: DataLoader[Any] = DataLoader(Samples(job), **arguments(job), pin_memory=True)

    def __iter__(self) -> Iterator[Any]:
        return copied(self.loader, self.device, non_blocking=True)

    def close(self) -> None:
        self.loader.shutdown()
