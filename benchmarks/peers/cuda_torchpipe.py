"""``torchpipe.DataLoader`` with ``device="cuda"``, at its default of two batches ahead. For P8c."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.peers.torch_dataloader import Samples, arguments
from torchpipe import DataLoader

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job, device: str) -> None:
        settings = arguments(job) | {"multiprocessing_context": None}
        self.loader: DataLoader[Any] = DataLoader(Samples(job), **settings, device=device)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader.shutdown()
