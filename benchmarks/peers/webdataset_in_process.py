"""webdataset: the shards read in the consumer's process, batched by the library. For P19s and P19r."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset

from benchmarks.harness.job import Job, Unsupported
from benchmarks.workloads import _samples

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job) -> None:
        if not job.tars or job.batch_size is None:
            raise Unsupported("reads tar files, which this workload has not")
        tars = list(job.tars) * max(1, job.count // _samples.SAMPLES)
        self.dataset: Any = webdataset.WebDataset(tars, shardshuffle=False).batched(
            job.batch_size, collation_fn=job.collate
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def close(self) -> None:
        self.dataset = None
