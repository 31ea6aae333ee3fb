"""pyarrow's own reader: ``ParquetFile.iter_batches`` over one file after the other, as it gives them. For P18."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness.job import Job, Unsupported

__all__ = ["Loader", "record_batches"]


def record_batches(job: Job) -> Iterator[Any]:
    assert job.tables is not None
    for path in job.tables(job.count):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=job.batch_size, columns=list(job.columns))


class Loader:
    def __init__(self, job: Job) -> None:
        if job.tables is None:
            raise Unsupported("reads parquet files, which this workload has not")
        self.job = job

    def __iter__(self) -> Iterator[Any]:
        return record_batches(self.job)

    def close(self) -> None:
        pass
