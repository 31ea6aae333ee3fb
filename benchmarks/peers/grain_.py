"""grain: ``MapDataset`` with ``mp_prefetch``, which starts its processes with spawn and moves numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import grain

from benchmarks.harness.job import Job

__all__ = ["NUMPY_ONLY", "START_METHODS", "Loader", "stages"]

NUMPY_ONLY = True
START_METHODS = ("spawn",)


class Loader:
    def __init__(self, job: Job) -> None:
        dataset: Any = grain.MapDataset.source(range(job.count))  # type: ignore[arg-type]
        if job.shuffle_buffer:  # a whole permutation, computed: it needs no buffer
            dataset = dataset.shuffle(seed=0)
        dataset = dataset.map(job.make)
        if job.batch_size is not None:
            dataset = dataset.batch(job.batch_size, batch_fn=job.collate)
        # The data lies in memory: no threads for reading, as the library's documentation advises.
        stream = dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        self.dataset = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=10)
        )
        self.iterator: Any = None
        self.loaded = False

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.close()
            self.iterator = iter(self.dataset)
        self.loaded = False
        return self.iterator  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        return self.iterator.get_state()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterator = iter(self.dataset)
        self.iterator.set_state(state)
        self.loaded = True

    def close(self) -> None:
        iterator, self.iterator = self.iterator, None
        if iterator is not None:
            iterator.close()


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    dataset: Any = grain.MapDataset.source(range(count))  # type: ignore[arg-type]
    for _ in range(number):
        dataset = dataset.map(_identity)
    return dataset.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))  # type: ignore[no-any-return]
