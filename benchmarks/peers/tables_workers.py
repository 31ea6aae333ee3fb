"""torchpipe: ``read_parquet`` in two worker processes. For P18."""

from __future__ import annotations

from benchmarks.harness.job import Job
from benchmarks.peers import tables
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2

__all__ = ["Loader"]


class Loader(tables.Loader):
    def __init__(self, job: Job) -> None:
        service = MultiProcessingReadingService(num_workers=job.workers, multiprocessing_context=job.start_method)
        self.loader = DataLoader2(tables.graph(job), reading_service=service)
        self.loader.seed(0)
