"""torchpipe: ``read_webdataset`` in process. For P19s and P19r."""

from __future__ import annotations

from benchmarks.harness.job import Job
from benchmarks.peers import shards
from benchmarks.workloads import _samples
from torchpipe import DataLoader2

__all__ = ["Loader"]


class Loader(shards.Loader):
    def __init__(self, job: Job) -> None:
        batches = shards.samples(job, _samples.SAMPLES).batch(job.batch_size or 1)
        self.loader = DataLoader2(batches.collate(job.collate))
        self.loader.seed(0)
