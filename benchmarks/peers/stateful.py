"""torchdata's ``StatefulDataLoader``, called as torch's ``DataLoader`` is; with a shuffle buffer, over an iterable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.harness.job import Job
from benchmarks.peers._shards import ShardStream
from benchmarks.peers.torch_dataloader import Samples, arguments

__all__ = ["Loader"]


class _Shuffled(IterableDataset[Any]):
    """A shuffle buffer as users write it, without a state of its own: the loader resumes it by replay."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        stream = ShardStream(self.job, worker.id, worker.num_workers) if worker else ShardStream(self.job, 0, 1)
        make = self.job.make
        for index in stream.indices():
            yield make(index)


class Loader:
    def __init__(self, job: Job) -> None:
        dataset = _Shuffled(job) if job.shuffle_buffer else Samples(job)
        self.loader: StatefulDataLoader[Any] | None = StatefulDataLoader(dataset, **arguments(job))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        assert self.loader is not None
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.loader is not None
        self.loader.load_state_dict(state)

    def close(self) -> None:
        loader, self.loader = self.loader, None
        shutdown = getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)
        if shutdown is not None:  # there are workers
            shutdown()
