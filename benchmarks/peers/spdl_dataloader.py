"""SPDL's ``get_pytorch_dataloader``: a pool of processes for each epoch, which make and collate batches of indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.dataloader import get_pytorch_dataloader

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers._shards import one_torch_thread
from benchmarks.peers.torch_dataloader import Samples, arguments

__all__ = ["PERSISTENT", "Loader"]

PERSISTENT = False  # processes end with each epoch


class _Samples(Samples):
    def __setstate__(self, state: dict[str, Any]) -> None:
        one_torch_thread()  # a worker's: the library has no function that is called in each
        self.__dict__.update(state)


class Loader:
    def __init__(self, job: Job) -> None:
        if not job.workers:
            raise Unsupported("makes nothing without worker processes")
        chosen = arguments(job)
        del chosen["persistent_workers"]  # refused
        self.loader: Any = get_pytorch_dataloader(_Samples(job), **chosen)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader = None
