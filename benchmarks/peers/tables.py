"""torchpipe: ``read_parquet`` in process, ``DataLoader2`` at its defaults. For P18."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.job import Job, Unsupported
from torchpipe import DataLoader2
from torchpipe.iter import PathList

__all__ = ["Loader", "graph"]


def graph(job: Job) -> Any:
    """Each shard reads whole files."""
    if job.tables is None:
        raise Unsupported("reads parquet files, which this workload has not")
    return PathList(job.tables(job.count)).sharding_filter().read_parquet(list(job.columns), batch_size=job.batch_size)


class Loader:
    def __init__(self, job: Job) -> None:
        self.loader: DataLoader2[Any] = DataLoader2(graph(job))
        self.loader.seed(0)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self.loader.shutdown()
