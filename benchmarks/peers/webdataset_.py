"""webdataset: tar shards of the same files, divided among ``WebLoader``'s workers and batched there. For P4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import webdataset

from benchmarks.harness.job import Job, Unsupported
from benchmarks.peers._shards import default_collate

__all__ = ["Loader"]


class _Decode:
    def __init__(self, job: Job) -> None:
        assert job.decode is not None
        self.decode = job.decode

    def __call__(self, sample: dict[str, Any]) -> Any:
        return self.decode(sample["jpg"], int(sample["__key__"].rpartition("/")[2]))


class Loader:
    def __init__(self, job: Job) -> None:
        if not job.tars or job.batch_size is None:
            raise Unsupported("reads tar files, which this workload has not")
        dataset = webdataset.WebDataset(list(job.tars), shardshuffle=False).map(_Decode(job))
        dataset = dataset.batched(job.batch_size, collation_fn=job.collate or default_collate)
        files = 256  # in all tars
        if job.count > files:
            dataset = dataset.repeat(job.count // files)
        self.loader: Any = webdataset.WebLoader(
            dataset, batch_size=None, num_workers=job.workers, multiprocessing_context=job.start_method
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def close(self) -> None:
        self.loader = None
