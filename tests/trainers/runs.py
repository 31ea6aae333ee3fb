"""The loaders and the model that every training here has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DistributedSampler, IterableDataset, default_collate

from examples.trainers.killed import BATCH_SIZE, DIGITS, Digits, digits
from reading_services import (
    DistributedReadingService,
    MultiProcessingReadingService,
    RayWorkers,
    SequentialReadingService,
)
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

SEED = 7


def _noisy(index: int, generator: np.random.Generator) -> dict[str, Any]:
    pixels, labels = digits()
    noise = torch.from_numpy(generator.random(784, dtype=np.float32))
    return {"identity": index, "pixels": pixels[index] + 0.1 * noise, "labels": labels[index]}


class Stream(IterableDataset[dict[str, Any]]):
    """A rank's digits, in an order of its own, which its state alone tells."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank = rank
        self._mine = range(rank, DIGITS - DIGITS % ranks, ranks)
        self._drawing = torch.Generator().manual_seed(SEED + rank)
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._order:
            self._order = torch.randperm(len(self._mine), generator=self._drawing).tolist()
        while self._order:
            pixels, labels = digits()
            index = self._mine[self._order.pop()]
            noise = torch.rand(784, generator=self._drawing)
            yield {"identity": index, "pixels": pixels[index] + 0.1 * noise, "labels": labels[index]}

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "drawing": self._drawing.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        self._drawing.set_state(state["drawing"])


def _all(_: Any) -> bool:
    return True


def loader_of(kind: str, rank: int, ranks: int, change: Callable[[Any], Any] | None = None, group: Any = None) -> Any:
    """``map``, ``map2``, ``actors``: a DataLoader, in process, with 2 workers, with a Ray actor; ``plain``: without a
    generator of its own; ``dealt``: to ranks by itself; ``stream``: of an iterable dataset; ``graph``, ``unsized``: a
    DataLoader2, ``shards``: of 2 shards, whatever the ranks. ``change``: of each batch; ``group``: of the ranks that
    divide data, if these are not all."""
    if kind == "plain":
        return DataLoader(Digits(), BATCH_SIZE, shuffle=True, num_workers=2)
    generator = torch.Generator().manual_seed(SEED)
    if kind == "dealt":
        options: dict[str, Any] = {"distributed": True if group is None else group, "num_workers": 2}
        if change is not None:
            options["collate_fn"] = lambda samples: change(default_collate(samples))
        return DataLoader(Digits(), BATCH_SIZE, shuffle=True, generator=generator, **options)
    if kind == "stream":
        return DataLoader(Stream(rank, ranks), BATCH_SIZE, generator=generator)
    if kind in ("map", "map2", "actors"):
        order: dict[str, Any] = {"shuffle": True}
        if ranks > 1:
            order = {"sampler": DistributedSampler(Digits(), ranks, rank, seed=SEED)}
        if change is not None:
            order["collate_fn"] = lambda samples: change(default_collate(samples))
        if kind == "actors":
            order["worker_method"] = RayWorkers(num_cpus=0.5)
        workers = {"map": 0, "map2": 2, "actors": 1}[kind]
        return DataLoader(Digits(), BATCH_SIZE, num_workers=workers, generator=generator, **order)
    graph = IterableWrapper(range(DIGITS)).shuffle().sharding_filter().random_map(_noisy)
    if kind == "unsized":
        graph = graph.filter(_all)
    graph = graph.batch(BATCH_SIZE).collate()
    if change is not None:
        graph = graph.map(change)
    service: Any = MultiProcessingReadingService(2)
    if kind == "shards":
        distributed = DistributedReadingService(group, timeout=60, total_shards=2, states="all")
        service = SequentialReadingService(distributed, MultiProcessingReadingService(1))
    elif ranks > 1:
        service = SequentialReadingService(
            DistributedReadingService(group, timeout=60), MultiProcessingReadingService(1)
        )
    loader: DataLoader2[Any] = DataLoader2(graph, reading_service=service)
    return loader  # without a seed of its own: what a state says must be enough


def model() -> nn.Module:
    return nn.Linear(784, 10)


def batches_of(ranks: int) -> int:
    """The batches of an epoch, of each rank."""
    return -(-DIGITS // ranks // BATCH_SIZE)
