"""torchpipe: ``DataLoader2`` with ``MultiProcessingReadingService`` at its defaults.

The stream is divided at the indices, by ``sharding_filter``; making and collating happen in the workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.peers._graphs import GraphLoader
from reading_services import MultiProcessingReadingService
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


class Loader(GraphLoader):
    def __init__(self, job: Job, *, measure: bool = False) -> None:
        service = MultiProcessingReadingService(
            num_workers=job.workers, multiprocessing_context=job.start_method if job.workers else None
        )
        super().__init__(graph(job), service, measure=measure)


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    """``number`` identity maps over ``count`` items, in process."""
    node: Any = IterableWrapper(range(count))
    for _ in range(number):
        node = node.map(_identity)
    return node
