"""Hugging Face ``datasets``: the files streamed, as tensors, in batches. For P18."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is looked up

import datasets

from benchmarks.harness.environments import ROOT
from benchmarks.harness.job import Job, Unsupported

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job) -> None:
        if job.tables is None or job.batch_size is None:
            raise Unsupported("reads parquet files, which this workload has not")
        paths = job.tables(job.count)
        different = list(dict.fromkeys(paths))
        stream = datasets.load_dataset(
            "parquet",
            data_files=different,
            split="train",
            streaming=True,
            columns=list(job.columns),
            cache_dir=str(ROOT / ".bench" / "datasets"),
        )
        if len(paths) > len(different):
            stream = stream.repeat(len(paths) // len(different))
        self.stream = stream.with_format("torch")
        self.batch_size = job.batch_size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream.iter(self.batch_size))

    def state_dict(self) -> Any:
        return self.stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.stream.load_state_dict(state)

    def close(self) -> None:
        self.stream = None
