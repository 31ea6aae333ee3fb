"""torchpipe: ``pack`` in two workers, at its defaults. Documents are read by index, in a random order of all."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness.job import Job
from benchmarks.peers._graphs import GraphLoader
from benchmarks.workloads.p17_packing import LENGTH, shifted
from reading_services import MultiProcessingReadingService
from torchpipe.map import MapDataPipe

__all__ = ["Documents", "Loader", "graph"]


class Documents(MapDataPipe[Any]):
    def __init__(self, job: Job) -> None:
        self.count = job.count
        self.make = job.make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def to_batch(packs: list[dict[str, Any]]) -> dict[str, Any]:
    batch = torch.utils.data.default_collate(packs)
    return {"input_ids": batch["input_ids"], "labels": batch["labels"], "positions": batch["positions"].long()}


def graph(job: Job) -> Any:
    documents = Documents(job).shuffle().sharding_filter().map(shifted)
    return documents.pack(LENGTH).batch(job.batch_size or 1, drop_last=True).collate(to_batch)


class Loader(GraphLoader):
    workers = 2

    def __init__(self, job: Job) -> None:
        service = MultiProcessingReadingService(self.workers, job.start_method if self.workers else None)
        super().__init__(graph(job), service)
