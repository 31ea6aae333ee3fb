"""torchdata.nodes: ``ParallelMapper`` with processes over batches of indices, in order, at its default look-ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchdata.nodes import Batcher, IterableWrapper, Mapper, ParallelMapper, SamplerWrapper
from torchdata.nodes import Loader as NodesLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from benchmarks.harness.job import Job
from benchmarks.peers._shards import default_collate

__all__ = ["Loader", "stages"]


class _MakeBatch:
    """Makes and collates a batch in one call, so that only indices travel to the workers."""

    def __init__(self, job: Job) -> None:
        self.make: Callable[[int], Any] = job.make
        self.collate = job.collate or default_collate

    def __call__(self, indices: list[int]) -> Any:
        return self.collate([self.make(index) for index in indices])


class Loader:
    def __init__(self, job: Job) -> None:
        node: Any
        if job.shuffle_buffer:  # a whole permutation: the library has no shuffle buffer
            node = SamplerWrapper(StatefulDistributedSampler(range(job.count), num_replicas=1, rank=0, shuffle=True))
        else:
            node = IterableWrapper(range(job.count))
        function: Callable[[Any], Any] = job.make
        if job.batch_size is not None:
            node, function = Batcher(node, job.batch_size), _MakeBatch(job)
        node = ParallelMapper(
            node, function, num_workers=job.workers, method="process", multiprocessing_context=job.start_method
        )
        self.node = node
        self.loader: NodesLoader[Any] = NodesLoader(node)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        iterator = self.node._it  # the library has no public way to end its workers
        if iterator is not None and hasattr(iterator, "_it"):
            iterator._it._shutdown()


def _identity(item: Any) -> Any:
    return item


def stages(count: int, number: int) -> Iterable[Any]:
    node: Any = IterableWrapper(range(count))
    for _ in range(number):
        node = Mapper(node, _identity)
    return NodesLoader(node)
