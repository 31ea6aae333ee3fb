"""torchpipe: ``read_webdataset`` in two worker processes, each reading whole shards. For P19."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers._graphs import GraphLoader
from reading_services import MultiProcessingReadingService
from torchpipe.iter import PathList

__all__ = ["Loader", "samples"]


class _Decode:
    def __init__(self, job: Job) -> None:
        assert job.decode is not None
        self.decode = job.decode

    def __call__(self, sample: dict[str, Any]) -> Any:
        return self.decode(sample["jpg"], int(sample["__key__"]))


def samples(job: Job, in_all_tars: int) -> Any:
    """The samples of the shards, which are read again until there are ``job.count``."""
    if not job.tars or job.batch_size is None:
        raise Unsupported("reads tar files, which this workload has not")
    shards = PathList(list(job.tars) * max(1, job.count // in_all_tars)).sharding_filter()
    return shards.read_webdataset(decode=False)


class Loader(GraphLoader):
    def __init__(self, job: Job) -> None:
        batches = samples(job, 256).map(_Decode(job)).batch(job.batch_size or 1)
        graph = batches.collate() if job.collate is None else batches.collate(job.collate)
        service = MultiProcessingReadingService(num_workers=job.workers, multiprocessing_context=job.start_method)
        super().__init__(graph, service)
