"""The executors that every law is checked on, and how to run a graph on them."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from reading_services import MultiProcessingReadingService, ReadingServiceInterface
from tests.laws.graphs import GraphSpec, build, text_of
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.errors import ReplicatedSourceWarning
from torchpipe.state import SnapshotPolicy

__all__ = ["PROCESSES", "make_loader", "make_service", "oracle", "pids", "run"]

PROCESSES = ("fork", "forkserver", "spawn")
"""The start methods; worker processes under each are an executor of their own."""


def make_service(
    workers: int | None, num_shards: int | None, *, context: str = "fork", every: int | None = None, **options: Any
) -> ReadingServiceInterface:
    """In-process execution for None, else that many worker processes (0: its in-process path). ``every``: snapshots."""
    policy = SnapshotPolicy if every is None else partial(SnapshotPolicy, every=every)
    if workers is None:
        return InProcessReadingService(num_shards=num_shards, policy=policy)
    return MultiProcessingReadingService(workers, context, num_shards=num_shards, policy=policy, **options)


def make_loader(graph: GraphSpec | Any, service: ReadingServiceInterface, seed: int = 5) -> DataLoader2[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplicatedSourceWarning)  # some graphs pair divided items with undivided ones
        loader: DataLoader2[Any] = DataLoader2(
            build(graph) if isinstance(graph, tuple) else graph, reading_service=service
        )
    loader.seed(seed)
    return loader


def run(graph: GraphSpec | Any, service: ReadingServiceInterface, epochs: int = 2) -> list[list[str]]:
    """The streams of the first epochs, as text."""
    with make_loader(graph, service) as loader:
        return [text_of(loader) for _ in range(epochs)]


def oracle(graph: GraphSpec | Any, num_shards: int, epochs: int = 2) -> list[list[str]]:
    """What in-process execution gives."""
    return run(graph, make_service(None, num_shards), epochs)


def pids(loader: DataLoader2[Any]) -> list[int]:
    """The process ids of the loader's workers that run just now."""
    service = loader.reading_service
    assert isinstance(service, MultiProcessingReadingService)
    found = service.worker_pids()
    assert all(pid > 0 for pid in found), "a kill of 0 would be one of the whole test run"
    return found
