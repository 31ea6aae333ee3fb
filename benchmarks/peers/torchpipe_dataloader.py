"""torchpipe's ``DataLoader``: called as torch's is, with the import changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.peers.torch_dataloader import Samples, arguments
from torchpipe import DataLoader

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job) -> None:
        self.loader: DataLoader[Any] = DataLoader(Samples(job), **arguments(job))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.shutdown()
