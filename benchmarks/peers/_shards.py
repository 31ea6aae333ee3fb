"""A plain Python stream of a share of a job: for peers whose worker processes run any iterable."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.harness.job import Job

__all__ = ["ShardStream", "default_collate", "one_torch_thread"]


def default_collate(samples: list[Any]) -> Any:
    """torch's ``default_collate``; torch is imported where it is called."""
    from torch.utils.data import default_collate as collate

    return collate(samples)


def one_torch_thread() -> None:
    """What torch's own workers do: threads of several workers would take each other's cores."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


class ShardStream:
    """Samples ``shard``, ``shard + shards`` ..., batched and collated: the least that a loader's worker must do."""

    def __init__(self, job: Job, shard: int, shards: int) -> None:
        self.job = job
        self.shard = shard
        self.shards = shards

    def indices(self) -> Iterator[int]:
        """The indices of this share in order, or shuffled in a buffer; the same in every pass."""
        indices = iter(range(self.shard, self.job.count, self.shards))
        size = self.job.shuffle_buffer
        if not size:
            yield from indices
            return
        draw = random.Random(self.shard)
        buffer: list[int] = []
        for index in indices:
            if len(buffer) < size:
                buffer.append(index)
                continue
            place = draw.randrange(size)
            index, buffer[place] = buffer[place], index
            yield index
        draw.shuffle(buffer)
        yield from buffer

    def __iter__(self) -> Iterator[Any]:
        make, size, collate = self.job.make, self.job.batch_size, self.job.collate or default_collate
        if size is None:
            for index in self.indices():
                yield make(index)
            return
        batch: list[Any] = []
        for index in self.indices():
            batch.append(make(index))
            if len(batch) == size:
                yield collate(batch)
                batch = []
        if batch:
            yield collate(batch)

    def __call__(self) -> ShardStream:
        return self  # iterated anew for each epoch
