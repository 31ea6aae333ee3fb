"""Ray Data: ``range``, ``map`` on two CPUs, ``iter_torch_batches``, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ray
import torch

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers.ray_ import connect

__all__ = ["Loader"]


def _row(make: Callable[[int], Any], row: dict[str, Any]) -> dict[str, Any]:
    """Tensors as arrays, which it keeps in blocks of Arrow; others would be pickled one by one."""
    made = make(int(row["id"]))
    named = made if isinstance(made, dict) else {"item": made}
    return {name: part.numpy() if isinstance(part, torch.Tensor) else part for name, part in named.items()}


class Loader:
    def __init__(self, job: Job) -> None:
        if job.batch_size is None:
            raise Unsupported("delivers batches")
        connect()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        # Blocks of some 16 MB, and a range no longer than the timed part needs: long ones take minutes to begin
        count = min(job.count, 1_000_000 if job.item_bytes < 1 << 16 else 100_000)
        rows = min(10_000, max(96, (16 << 20) * job.batch_size // max(1, job.item_bytes)))
        dataset = ray.data.range(count, override_num_blocks=max(1, count // rows))
        self._dataset = dataset.map(partial(_row, job.make), num_cpus=1, concurrency=job.workers)
        self._batch_size = job.batch_size

    def __iter__(self) -> Iterator[Any]:
        for batch in self._dataset.iter_torch_batches(batch_size=self._batch_size, prefetch_batches=4):
            yield batch["item"] if set(batch) == {"item"} else batch

    def close(self) -> None:
        """It ends with Ray."""
