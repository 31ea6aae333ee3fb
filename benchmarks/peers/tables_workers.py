"""torchpipe: ``read_parquet`` in two worker processes. For P18."""

from __future__ import annotations

from benchmarks.harness.job import Job
from benchmarks.peers import tables
from benchmarks.peers._graphs import GraphLoader
from reading_services import MultiProcessingReadingService

__all__ = ["Loader"]


class Loader(GraphLoader):
    def __init__(self, job: Job) -> None:
        service = MultiProcessingReadingService(num_workers=job.workers, multiprocessing_context=job.start_method)
        super().__init__(tables.graph(job), service)
