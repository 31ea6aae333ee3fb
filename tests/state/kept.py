"""Loaders whose states were saved long ago, by another torch, numpy or Python perhaps, and what has to follow them.

``python -c "from tests.state import kept; kept.save()"`` writes ``kept.pt`` anew: only where a change of the format, or
of a stream, is meant and stands in the change log, since every checkpoint of a user's is of the time before it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset, WeightedRandomSampler

from tests.laws.executors import make_service
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

__all__ = ["FILE", "LOADERS", "digest", "save"]

FILE = Path(__file__).with_name("kept.pt")
SEED, TAKEN = 7, 5


def drawn() -> list[Any]:
    """Of each global generator. Normal numbers rest on a C library's logarithm, whose last bit is the processor's."""
    torchs = [float(torch.rand(())), torch.randperm(4).tolist(), int(torch.randint(1000, ()))]
    numpys = [float(np.random.rand()), round(np.random.randn(), 9), int(np.random.choice(1000))]
    return [*torchs, *numpys, random.random(), round(random.gauss(0, 1), 9), random.choice("abc")]


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "drawn": drawn()}


def noisy(item: Any) -> list[Any]:
    return [item, drawn()]


def listed(item: int) -> list[int]:
    return list(range(item % 13 + 1))


def numbers(begin: int = 0) -> Any:
    return IterableWrapper(range(begin, begin + 60)).shuffle(buffer_size=9).sharding_filter()


def loader(workers: int | None, sampler: Any = None) -> Any:
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(
        Noisy(),
        4,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=workers or 0,
        multiprocessing_context="fork" if workers else None,
        collate_fn=list,
        generator=generator,
    )


def weighted() -> Any:
    return WeightedRandomSampler([1.0, 2.0] * 30, 40, generator=torch.Generator().manual_seed(SEED))


GRAPHS: dict[str, Callable[[], Any]] = {
    "graph": lambda: numbers().map(noisy).batch(3),
    "by index": lambda: SequenceWrapper(list(range(60))).shuffle().sharding_filter().map(noisy).shuffle(buffer_size=5),
    "dispatched": lambda: (
        IterableWrapper(range(60)).shuffle(buffer_size=9).map(noisy).sharding_round_robin_dispatch().map(noisy)
    ),
    "mixed": lambda: numbers().mix(numbers(100), weights=[3, 1], stop="all_exhausted").map(noisy),
    "packed": lambda: numbers().map(listed).pack(16),
    "cached": lambda: numbers().map(noisy).cache().shuffle(buffer_size=5),
}


def graph(name: str, workers: int | None) -> Any:
    made: DataLoader2[Any] = DataLoader2(GRAPHS[name](), reading_service=make_service(workers, 2))
    made.seed(SEED)
    return made


LOADERS: dict[str, Callable[[int | None], Any]] = {
    **{name: lambda workers, name=name: graph(name, workers) for name in GRAPHS},
    "DataLoader": loader,
    "DataLoader, weighted": lambda workers: loader(workers, weighted()),
}


def digest(items: list[Any]) -> str:
    plain = tree_map(lambda leaf: leaf.tolist() if hasattr(leaf, "tolist") else leaf, items)
    return hashlib.sha256(repr(plain).encode()).hexdigest()


def save() -> None:
    kept = {}
    for name, make in LOADERS.items():
        with make(2) as loader:
            stream = iter(loader)
            for _ in range(TAKEN):
                next(stream)
            state = loader.state_dict()
            kept[name] = {"state": state, "rest": digest(list(stream)), "next epoch": digest(list(loader))}
    torch.save(kept, FILE)
