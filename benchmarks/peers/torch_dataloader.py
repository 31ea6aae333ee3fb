"""torch's ``DataLoader`` over a map-style dataset, in order, with persistent workers and its default prefetching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset
from torch.utils.data.datapipes.iter import IterableWrapper

from benchmarks.harness.job import Job

__all__ = ["Loader", "Samples", "arguments", "stages"]


class Samples(Dataset[Any]):
    """Sample ``i`` is made when it is asked for."""

    def __init__(self, job: Job) -> None:
        self.count = job.count
        self.make: Callable[[int], Any] = job.make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def arguments(job: Job) -> dict[str, Any]:
    """What the loaders that are called as torch's are called with."""
    return {
        "batch_size": job.batch_size,
        "collate_fn": job.collate if job.batch_size is not None else None,
        "num_workers": job.workers,
        "multiprocessing_context": job.start_method if job.workers else None,
        "persistent_workers": job.persistent and job.workers > 0,
        "shuffle": job.permute,
    }


class Loader:
    def __init__(self, job: Job) -> None:
        self.loader: DataLoader[Any] | None = DataLoader(Samples(job), **arguments(job))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)  # type: ignore[arg-type]

    def close(self) -> None:
        loader, self.loader = self.loader, None
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:  # torch has no public way to end persistent workers now
            iterator._shutdown_workers()


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    """torch's own DataPipes, which are still there: identity maps in process."""
    node: Any = IterableWrapper(range(count))
    for _ in range(number):
        node = node.map(_identity)
    return node  # type: ignore[no-any-return]
