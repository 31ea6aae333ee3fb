"""Datasets, samplers and functions that the loader's tests use: module-level, so that spawned workers can import them.

Imported by tests and by their workers.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from tests.exact import exact

__all__ = [
    "LENGTH",
    "SAMPLERS",
    "Augmented",
    "Counting",
    "EagerSampler",
    "Endless",
    "FailingAt",
    "Killer",
    "LazySampler",
    "Lines",
    "Numbers",
    "StatefulNumbers",
    "StatefulSampler",
    "epochs_of",
    "global_states",
    "sampler_options",
    "seeded",
    "text_of",
    "without_len",
]


class Numbers(Dataset[int]):
    """``length`` samples, each its own index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not -self.length <= index < self.length:
            raise IndexError(f"no sample {index} of {self.length}")
        return int(index)


class Augmented(Numbers):
    """Samples with a draw from each of the three global generators."""

    def __getitem__(self, index: int) -> Any:
        drawn = (random.random(), float(np.random.rand()), float(torch.rand(())))
        return (super().__getitem__(index), *drawn)


class StatefulNumbers(Numbers):
    """Says with each sample how many it has made so far: a state that workers have each of their own."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.made = 0

    def __getitem__(self, index: int) -> Any:
        self.made += 1
        return super().__getitem__(index), self.made

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if type(state["made"]) is not int or not 0 <= state["made"] <= 1 << 40:
            raise TypeError(f"made is {state['made']!r}")
        self.made = state["made"]


class FailingAt(Numbers):
    """Raises ``make_error()`` for the indices of ``at``."""

    def __init__(self, length: int, at: tuple[int, ...], make_error: Callable[[], BaseException]) -> None:
        super().__init__(length)
        self.at = at
        self.make_error = make_error

    def __getitem__(self, index: int) -> Any:
        if index in self.at:
            raise self.make_error()
        return super().__getitem__(index)


class Killer(Augmented):
    """Its worker dies in each way of ``deaths`` (index, how) the first time it gets there, with ``always`` each time.

    ``folder`` remembers who has struck, in files.
    """

    def __init__(self, length: int, folder: str, deaths: tuple[tuple[int, str], ...], always: bool = False) -> None:
        super().__init__(length)
        self.folder = folder
        self.deaths = deaths
        self.always = always

    def __getitem__(self, index: int) -> Any:
        for number, (at, how) in enumerate(self.deaths):
            if at == index and get_worker_info() is not None and self._first(number):
                if how.startswith("exit"):
                    os._exit(int(how[-1]))
                os.kill(os.getpid(), getattr(signal, how))
                signal.pause()  # until it is dead
        return super().__getitem__(index)

    def _first(self, number: int) -> bool:
        try:
            Path(self.folder, f"struck {number}").touch(exist_ok=self.always)
        except FileExistsError:
            return False
        return True


class Counting(Numbers):
    """Leaves a file for each sample that is read in this process or another: how often and which."""

    def __init__(self, length: int, folder: str) -> None:
        super().__init__(length)
        self.folder = folder

    def __getitem__(self, index: int) -> Any:
        Path(self.folder, str(index)).touch()
        return super().__getitem__(index)


class Lines(IterableDataset[Any]):
    """Divides itself among workers as torch's documentation says, and draws for each item."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield number, random.random(), float(np.random.rand()), float(torch.rand(()))


class LazySampler(Sampler[int]):
    """Draws each index when it is asked for, from the global generators that ``sources`` names."""

    def __init__(self, length: int, count: int, sources: str = "torch") -> None:
        self.length = length
        self.count = count
        self.sources = sources

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.count):
            index = 0
            if "torch" in self.sources:
                index += int(torch.randint(self.length, ()))
            if "random" in self.sources:
                index += random.randrange(self.length)
            if "numpy" in self.sources:
                index += int(np.random.randint(self.length))
            yield index % self.length

    def __len__(self) -> int:
        return self.count


class EagerSampler(LazySampler):
    """Draws all indices when it is asked for its iterator."""

    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__()))


class WithoutLen:
    """Any iterable of indices: no length, no base class."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.count = count

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.count):
            yield int(torch.randint(self.length, ()))


def without_len(length: int, count: int) -> WithoutLen:
    return WithoutLen(length, count)


class Endless:
    """A batch sampler without end."""

    def __init__(self, length: int, size: int = 3) -> None:
        self.length = length
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield torch.randint(self.length, (self.size,)).tolist()


class StatefulSampler(Sampler[int]):
    """A permutation from a generator of its own for each epoch. Its state goes on in mid-epoch, and into the next."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length = length
        self.generator_of_mine = random.Random(seed)
        self.left: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        if self.left is None:
            self.left = self.generator_of_mine.sample(range(self.length), self.length)
        while self.left:
            yield self.left.pop()
        self.left = None

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = self.generator_of_mine.getstate()
        return {"random": [version, list(words), gauss], "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["random"]
        if state["left"] is not None and not set(state["left"]) <= set(range(self.length)):
            raise ValueError(f"left is {state['left']!r}")
        self.generator_of_mine.setstate((version, tuple(words), gauss))
        self.left = None if state["left"] is None else list(state["left"])


def global_states() -> tuple[Any, ...]:
    """Where the three global generators stand, comparable."""
    kind, words, *more = np.random.get_state()
    return random.getstate(), (kind, bytes(words), *more), bytes(torch.get_rng_state().numpy())


@contextmanager
def seeded(seed: int = 11) -> Iterator[None]:
    """The three global generators seeded alike, and afterwards as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


LENGTH = 23
SAMPLERS = (
    "sequential",
    "shuffle",
    "shuffle with generator",
    "with replacement",
    "num_samples",
    "replacement with generator",
    "subset",
    "weighted",
    "weighted with generator",
    "distributed",
    "batch sampler",
    "batch sampler, shuffled",
    "lazy",
    "lazy with all generators",
    "eager",
    "without len",
    "drop_last",
    "not batched",
    "not batched, shuffled",
)


def sampler_options(name: str, seed: int = 3) -> dict[str, Any]:
    """What to give a loader over ``Numbers(LENGTH)``, of torch's or torchpipe's, for a kind of sampler. Made anew."""
    from torch.utils.data import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    data, generator = Numbers(LENGTH), torch.Generator().manual_seed(seed)
    weights = [1.0 + number % 5 for number in range(LENGTH)]
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "sequential": lambda: {},
        "shuffle": lambda: {"shuffle": True},
        "shuffle with generator": lambda: {"shuffle": True, "generator": generator},
        "with replacement": lambda: {"sampler": RandomSampler(data, replacement=True, num_samples=70)},
        "num_samples": lambda: {"sampler": RandomSampler(data, num_samples=50)},
        "replacement with generator": lambda: {
            "sampler": RandomSampler(data, replacement=True, num_samples=70, generator=generator)
        },
        "subset": lambda: {"sampler": SubsetRandomSampler(range(2, 20))},
        "weighted": lambda: {"sampler": WeightedRandomSampler(weights, 40)},
        "weighted with generator": lambda: {
            "sampler": WeightedRandomSampler(weights, 40, generator=generator),
            "generator": generator,
        },
        "distributed": lambda: {"sampler": DistributedSampler(data, num_replicas=2, rank=1)},
        "batch sampler": lambda: {"batch_sampler": [[1, 2], [3], [], [4, 5, 6], [22]]},
        "batch sampler, shuffled": lambda: {"batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=True)},
        "lazy": lambda: {"sampler": LazySampler(LENGTH, 40)},
        "lazy with all generators": lambda: {"sampler": LazySampler(LENGTH, 40, "torch random numpy")},
        "eager": lambda: {"sampler": EagerSampler(LENGTH, 40, "torch random numpy")},
        "without len": lambda: {"sampler": without_len(LENGTH, 40)},
        "drop_last": lambda: {"shuffle": True, "drop_last": True},
        "not batched": lambda: {"batch_size": None},
        "not batched, shuffled": lambda: {"batch_size": None, "shuffle": True},
    }
    options = made[name]()
    if not {"batch_size", "batch_sampler"} & options.keys():
        options["batch_size"] = 4
    return options


def epochs_of(dataset: Any, epochs: int, *, seed: int | None = None, **options: Any) -> list[list[str]]:
    """The batches of the first epochs of a loader, as text. ``seed``: of torch's default generator, put back after."""
    from torchpipe import DataLoader

    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        with DataLoader(dataset, **options) as loader:
            return [[exact(batch) for batch in loader] for _ in range(epochs)]


def text_of(error: BaseException) -> str:
    """What an error says, with its notes."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])
