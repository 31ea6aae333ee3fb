"""``torchpipe.DataLoader`` with worker threads: the rest as ``torchpipe_dataloader``."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.job import Job
from benchmarks.peers import torchpipe_dataloader
from benchmarks.peers.torch_dataloader import Samples, arguments
from torchpipe import DataLoader

__all__ = ["Loader"]


class Loader(torchpipe_dataloader.Loader):
    def __init__(self, job: Job) -> None:
        settings = arguments(job) | {"multiprocessing_context": None}
        self.loader: DataLoader[Any] = DataLoader(Samples(job), **settings, worker_method="thread")
