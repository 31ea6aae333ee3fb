"""A Ray cluster on this machine, graphs to run on it, and means to kill what runs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import Any

import psutil
import torch

from reading_services import RayReadingService, RayWorkers
from tests.exact import exact
from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper

__all__ = [
    "GRAPHS",
    "actor_processes",
    "endless",
    "first_in_process",
    "in_process",
    "kill",
    "ray_loader",
    "shuffled",
    "texts",
    "wait_until",
]

SEED = 11


def augment(item: int) -> tuple[int, float, torch.Tensor]:
    """Draws from the global random states, as augmentation does."""
    return item, random.random(), torch.rand(3)


def plain(length: int = 61) -> Any:
    return IterableWrapper(range(length)).sharding_filter().map(augment)


def shuffled(length: int = 61) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=9).sharding_filter().map(augment).batch(3)


def dispatched(length: int = 61) -> Any:
    return IterableWrapper(range(length)).shuffle(buffer_size=9).sharding_round_robin_dispatch().map(augment)


def packed(length: int = 61) -> Any:
    tokens = IterableWrapper([[number] * (1 + number % 7) for number in range(length)])
    return tokens.shuffle(buffer_size=5).sharding_filter().pack(8)


GRAPHS: dict[str, Callable[..., Any]] = {
    "plain": plain,
    "shuffled": shuffled,
    "dispatched": dispatched,
    "packed": packed,
}


def takes_long(item: Any) -> Any:
    """As work does that is worth other machines: what is killed is killed in the midst of it."""
    time.sleep(0.02)
    return item


def endless(kind: str) -> Any:
    """A graph of one of these kinds, of which a test takes as many items as it needs."""
    return GRAPHS[kind](10_000_000).map(takes_long)


def seeded(graph: Any, service: Any) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    loader.seed(SEED)
    return loader


def in_process(graph: Any, num_shards: int) -> DataLoader2[Any]:
    """The oracle."""
    return seeded(graph, InProcessReadingService(num_shards=num_shards))


def first_in_process(kind: str, count: int, num_shards: int) -> list[str]:
    """The first items of an endless graph."""
    stream = iter(in_process(GRAPHS[kind](10_000_000), num_shards))
    return texts([next(stream) for _ in range(count)])


def ray_loader(graph: Any, num_workers: int, num_shards: int, **options: Any) -> DataLoader2[Any]:
    """``options``: of the service, and of its ``RayWorkers``."""
    wanted = {name: options.pop(name) for name in set(options) & {field.name for field in fields(RayWorkers)}}
    options["worker_method"] = RayWorkers(**{"num_cpus": 0.5, **wanted})
    return seeded(graph, RayReadingService(num_workers, num_shards=num_shards, **options))


def texts(items: Any) -> list[str]:
    return [exact(item) for item in items]


def actor_processes() -> list[psutil.Process]:
    """The processes of this library's actors: Ray names them after the class."""
    return list(_actor_processes())


def _actor_processes() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):  # nodes are children of this process, actors theirs
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(("ray::ShardActor", "ray::DispatchActor")):
                yield process


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def wait_until(holds: Callable[[], Any], at_most_s: float = 60.0) -> None:
    ends_at = time.monotonic() + at_most_s
    while not holds():
        assert time.monotonic() < ends_at, "what was waited for has not happened"
        time.sleep(0.05)
