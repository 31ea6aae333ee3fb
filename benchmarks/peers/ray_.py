"""torchpipe: ``DataLoader2`` with ``RayReadingService``: as peer ``torchpipe``, with Ray actors for processes."""

from __future__ import annotations

from typing import Any

import ray

from benchmarks.harness.job import Job
from benchmarks.peers._graphs import GraphLoader
from benchmarks.peers.torchpipe_ import graph
from reading_services import RayReadingService

__all__ = ["Loader", "connect"]


def connect(cpus: int | None = None) -> None:
    """A local Ray of this process's own. CPUs are what Ray counts: there are enough for workers and what reads."""
    if not ray.is_initialized():
        ray.init(
            address="local", num_cpus=cpus or 4, log_to_driver=False, logging_level="error", object_store_memory=1 << 30
        )


class Loader(GraphLoader):
    def __init__(self, job: Job, *, measure: bool = False) -> None:
        connect()
        service: Any = RayReadingService(job.workers)
        super().__init__(graph(job), service, measure=measure)
