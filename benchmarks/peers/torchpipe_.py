"""torchpipe: ``DataLoader2`` with ``MultiProcessingReadingService`` at its defaults.

The stream is divided at the indices, by ``sharding_filter``; making and collating happen in the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.harness.job import Job
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

__all__ = ["Loader", "graph", "stages"]


def graph(job: Job) -> Any:
    """The graph of a job."""
    node = IterableWrapper(range(job.count))
    if job.shuffle_buffer:
        node = node.shuffle(buffer_size=job.shuffle_buffer)
    node = node.sharding_filter().map(job.make)
    if job.batch_size is None:
        return node
    batches = node.batch(job.batch_size)
    return batches.collate() if job.collate is None else batches.collate(job.collate)


class Loader:
    def __init__(self, job: Job, *, measure: bool = False) -> None:
        service = MultiProcessingReadingService(
            num_workers=job.workers, multiprocessing_context=job.start_method if job.workers else None
        )
        self.loader: DataLoader2[Any] = DataLoader2(graph(job), reading_service=service, measure=measure)
        self.loader.seed(0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.shutdown()


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    """``number`` identity maps over ``count`` items, in process."""
    node: Any = IterableWrapper(range(count))
    for _ in range(number):
        node = node.map(_identity)
    return node
