"""torchpipe: ``read_webdataset`` in process. For P19s and P19r."""

from __future__ import annotations

from benchmarks.harness.job import Job
from benchmarks.peers import shards
from benchmarks.peers._graphs import GraphLoader
from benchmarks.workloads import _samples

__all__ = ["Loader"]


class Loader(GraphLoader):
    def __init__(self, job: Job) -> None:
        batches = shards.samples(job, _samples.SAMPLES).batch(job.batch_size or 1)
        super().__init__(batches.collate(job.collate))
