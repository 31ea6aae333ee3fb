"""torchdata 0.9: ``DataLoader2`` with ``MultiProcessingReadingService`` at its defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper

from benchmarks.harness.job import Job

__all__ = ["Loader", "stages"]


class Loader:
    def __init__(self, job: Job) -> None:
        node: Any = IterableWrapper(range(job.count))
        if job.shuffle_buffer:
            node = node.shuffle(buffer_size=job.shuffle_buffer)
        node = node.sharding_filter().map(job.make)
        if job.batch_size is not None:
            node = node.batch(job.batch_size)
            node = node.collate() if job.collate is None else node.collate(collate_fn=job.collate)
        service = MultiProcessingReadingService(
            num_workers=job.workers, multiprocessing_context=job.start_method if job.workers else None
        )
        self.loader: DataLoader2[Any] = DataLoader2(node, reading_service=service)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader.shutdown()


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    node: Any = IterableWrapper(range(count))
    for _ in range(number):
        node = node.map(_identity)
    return node  # type: ignore[no-any-return]
