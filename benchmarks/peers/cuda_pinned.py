"""torch's ``DataLoader`` with ``pin_memory=True``, and copies that do not block in the loop. For P8c."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.harness.job import Job
from benchmarks.peers import torch_dataloader
from benchmarks.peers._copied import copied
from benchmarks.peers.torch_dataloader import Samples, arguments

__all__ = ["Loader"]


class Loader(torch_dataloader.Loader):
    pinned = True

    def __init__(self, job: Job, device: str) -> None:
        self.device = device
        self.loader: DataLoader[Any] | None = DataLoader(Samples(job), **arguments(job), pin_memory=self.pinned)

    def __iter__(self) -> Iterator[Any]:
        assert self.loader is not None
        return copied(self.loader, self.device, non_blocking=self.pinned)
