"""grain, as torchtitan uses it: a shuffled ``MapDataset`` read by 4 threads, ``ConcatThenSplit``, a prefetch thread.

No worker processes: torchtitan starts none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
import torch
from grain import experimental

from benchmarks.harness.job import Job
from benchmarks.workloads.p17_packing import LENGTH, shifted

__all__ = ["Loader", "packed"]


def to_tensors(features: dict[str, Any]) -> dict[str, torch.Tensor]:
    names = {"input_ids": "input_ids", "labels": "labels", "positions": "input_ids_positions"}
    return {name: torch.as_tensor(np.asarray(features[of]), dtype=torch.long) for name, of in names.items()}


def packed(job: Job, *, threads: int, ahead: int) -> Any:
    """Batches of numpy arrays."""
    documents: Any = grain.MapDataset.source(range(job.count))  # type: ignore[arg-type]
    documents = documents.map(job.make).shuffle(seed=0).map(shifted)
    documents = documents.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead))
    lengths = {"input_ids": LENGTH, "labels": LENGTH}
    packs = experimental.ConcatThenSplitIterDataset(documents, length_struct=lengths)
    return packs.batch(job.batch_size or 1, drop_remainder=True)


class Loader:
    def __init__(self, job: Job) -> None:
        dataset = packed(job, threads=4, ahead=64).map(to_tensors)
        self.iterator: Any = iter(experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=8))

    def __iter__(self) -> Iterator[Any]:
        return self.iterator  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        return self.iterator.get_state()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterator.set_state(state)

    def close(self) -> None:
        self.iterator.close()
