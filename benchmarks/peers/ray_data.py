"""Ray Data: ``range``, ``map`` on two CPUs, ``iter_torch_batches``, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ray

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers.ray_ import connect

__all__ = ["Loader"]


def _row(make: Callable[[int], Any], row: dict[str, Any]) -> dict[str, Any]:
    made = make(int(row["id"]))
    return made if isinstance(made, dict) else {"item": made}


class Loader:
    def __init__(self, job: Job) -> None:
        if job.batch_size is None:
            raise Unsupported("delivers batches")
        connect()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        # In blocks of a few hundred rows: at its default, one block of a long range takes minutes to come
        dataset = ray.data.range(job.count, override_num_blocks=max(1, min(10_000, job.count // 320)))
        self._dataset = dataset.map(partial(_row, job.make), num_cpus=1, concurrency=job.workers)
        self._batch_size = job.batch_size

    def __iter__(self) -> Iterator[Any]:
        for batch in self._dataset.iter_torch_batches(batch_size=self._batch_size, prefetch_batches=4):
            yield batch["item"] if set(batch) == {"item"} else batch

    def close(self) -> None:
        """It ends with Ray."""
