"""torchpipe: ``read_parquet`` in process, ``DataLoader2`` at its defaults. For P18."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers._graphs import GraphLoader
from torchpipe.iter import PathList

__all__ = ["Loader", "graph"]


def graph(job: Job) -> Any:
    """Each shard reads whole files."""
    if job.tables is None:
        raise Unsupported("reads parquet files, which this workload has not")
    return PathList(job.tables(job.count)).sharding_filter().read_parquet(list(job.columns), batch_size=job.batch_size)


class Loader(GraphLoader):
    def __init__(self, job: Job) -> None:
        super().__init__(graph(job))
