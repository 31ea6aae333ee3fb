"""Random generators in what graphs read by index: seeded for each item, so that an item depends on its position."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe, MapDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

LENGTH, SHARDS = 12, 2


class Noise:
    """A function with a generator."""

    def __init__(self) -> None:
        self.rng = random.Random(1)

    def __call__(self, item: Any) -> Any:
        return item, self.rng.random()


class Draws(Dataset[Any]):
    def __init__(self) -> None:
        self.rng, self.others = np.random.default_rng(0), [torch.Generator()]

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, self.rng.random(), float(torch.rand((), generator=self.others[0]))


class Many(Draws):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Node(MapDataPipe[Any]):
    def __init__(self, source: MapDataPipe[Any]) -> None:
        self.source, self.noise = source, {"noise": Noise()}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.noise["noise"](self.source[index])


class Fails(Draws):
    """Draws, and then raises: each item once."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        item = super().__getitem__(index)
        if index in self.failed:
            return item
        self.failed.add(index)
        raise OSError("for a moment")


class Dies(Draws):
    """Its worker is killed once, which ``path`` remembers."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int) -> Any:
        if index == 7 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


Graph = Callable[[], IterDataPipe[Any]]
GRAPHS: dict[str, Graph] = {
    "function": lambda: SequenceWrapper(range(LENGTH)).map(Noise()).to_iter_datapipe().sharding_filter(),
    "method": lambda: SequenceWrapper(range(LENGTH)).map(Noise().__call__).shuffle().sharding_filter(),
    "dataset": lambda: SequenceWrapper(Draws()).to_iter_datapipe().shuffle(buffer_size=5).sharding_filter(),
    "node": lambda: Node(SequenceWrapper(Draws())).batch(2).to_iter_datapipe().sharding_filter(),
    "wrapped": lambda: IterableWrapper(Draws()).sharding_filter(),
    "wrapped, many": lambda: IterableWrapper(Many(), deepcopy=False).shuffle().sharding_filter(),
    "zipped": lambda: SequenceWrapper(Draws()).zip(SequenceWrapper(Draws())).to_iter_datapipe().sharding_filter(),
    "kept": lambda: SequenceWrapper(Draws()).in_memory_cache().to_iter_datapipe().sharding_filter(),
    "retried": lambda: SequenceWrapper(Draws()).to_iter_datapipe().sharding_filter().retry(2),
}


def loader(graph: IterDataPipe[Any], workers: int, **options: Any) -> DataLoader2[Any]:
    service: Any = InProcessReadingService(num_shards=SHARDS)
    if workers:
        service = MultiProcessingReadingService(workers, num_shards=SHARDS, **options)
    made = DataLoader2(graph, reading_service=service)
    made.seed(3)
    return made


@pytest.fixture(autouse=True)
def no_word() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", GRAPHS)
def test_L1_L2_L3_items_depend_on_their_positions(name: str) -> None:
    with loader(GRAPHS[name](), 0) as whole_loader:
        whole = [list(whole_loader), list(whole_loader)]
    assert (whole[0] == whole[1]) == (name == "kept")
    for workers in (1, 2):
        with loader(GRAPHS[name](), workers) as made:
            assert [list(made), list(made)] == whole
    for epoch, cut, workers in [(0, 0, 1), (0, 5, 0), (0, len(whole[0]), 0), (1, 0, 0), (1, 4, 0), (1, 3, 1)]:
        with loader(GRAPHS[name](), 0) as first, loader(GRAPHS[name](), workers) as other:
            for _ in range(epoch):
                list(first)
            iterator = iter(first)
            for _ in range(cut):
                next(iterator)
            other.load_state_dict(first.state_dict())
            assert list(other) == whole[epoch][cut:]


def test_L4_a_killed_worker(tmp_path: Path) -> None:
    def graph(dataset: Any) -> IterDataPipe[Any]:
        return SequenceWrapper(dataset).to_iter_datapipe().shuffle(buffer_size=3).sharding_filter()

    with loader(graph(Draws()), 0) as here, loader(graph(Dies(tmp_path / "died")), 1) as there:
        assert list(there) == list(here)
    assert (tmp_path / "died").exists()


def test_L1_under_spawn() -> None:
    with loader(GRAPHS["node"](), 0) as here, loader(GRAPHS["node"](), 1, multiprocessing_context="spawn") as there:
        assert list(there) == list(here)


def test_L1_another_attempt_draws_what_the_first_one_drew() -> None:
    def made(dataset: Any) -> list[Any]:
        graph = SequenceWrapper(dataset).to_iter_datapipe().sharding_filter().retry(2, backoff_s=0.0)
        with loader(graph, 0) as items:
            return list(items)

    assert made(Fails()) == made(Draws())


def test_generators_stand_where_they_stood_behind_a_pass() -> None:
    dataset, same = Draws(), Draws()
    with loader(SequenceWrapper(dataset).to_iter_datapipe().sharding_filter(), 0) as items:
        list(items)
    assert dataset[0] == same[0]


def test_L1_any_number_of_shards_gives_the_same_items() -> None:
    def items(shards: int) -> list[Any]:
        made = DataLoader2(GRAPHS["function"](), reading_service=InProcessReadingService(num_shards=shards))
        made.seed(3)
        return sorted(made)

    assert items(1) == items(2) == items(3)


class Running:
    """Sums up what it has seen."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, item: int) -> int:
        self.total += item
        return self.total

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total = state["total"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Running, r"Mapper.fn is an object with a state_dict \(Running\)"),
    ],
)
def test_L7_what_items_may_depend_on_is_told_by_name(make: Any, text: str, workers: int) -> None:
    graph = SequenceWrapper(range(100)).map(make()).to_iter_datapipe().sharding_filter()
    with pytest.warns(UserWarning, match=text), loader(graph, workers) as items:
        list(items)
