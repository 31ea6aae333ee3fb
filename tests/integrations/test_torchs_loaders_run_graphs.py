"""Graphs that torch's and torchdata's loaders run: each item once, whatever draws before a sharding point."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, graph_settings
from torchdata.stateful_dataloader import StatefulDataLoader

from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

ITEMS = list(range(24))


class Drawing(IterDataPipe[int]):
    """A source of the user's in an order that it draws from a global generator."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[int]:
        order = list(ITEMS)
        match self.kind:
            case "random":
                random.shuffle(order)
            case "numpy":
                np.random.shuffle(order)
            case "torch":
                order = torch.randperm(len(order)).tolist()
        yield from order


class OwnPoint(IterDataPipe[int]):
    """A sharding point of the user's, in torch's way."""

    def __init__(self, source: IterDataPipe[int]) -> None:
        self.source = source
        self.parts, self.part = 1, 0

    def apply_sharding(self, num_of_instances: int, instance_id: int) -> None:
        self.parts, self.part = num_of_instances, instance_id

    def __iter__(self) -> Iterator[int]:
        for number, item in enumerate(self.source):
            if number % self.parts == self.part:
                yield item


def drawn(item: int) -> list[Any]:
    return [random.random() + float(np.random.rand()) + float(torch.rand(())), item]


def halves() -> list[IterDataPipe[int]]:
    return [IterableWrapper(ITEMS[:9]), IterableWrapper(ITEMS[9:])]


def mixed() -> IterDataPipe[Any]:
    first, second = halves()
    return first.mix(second, weights=[1, 1], stop="all_exhausted")


GRAPHS: dict[str, Any] = {
    "shuffle": lambda: IterableWrapper(ITEMS).shuffle().sharding_filter(),
    "mix": lambda: mixed().sharding_filter(),
    "window_shuffle": lambda: IterableWrapper(ITEMS).window_shuffle(8).sharding_filter(),
    "map shuffle": lambda: SequenceWrapper(ITEMS).shuffle().sharding_filter(),
    "random_map": lambda: IterableWrapper(ITEMS).random_map(by_number).filter(whole).sharding_filter(),
    "sort by draws": lambda: IterableWrapper(ITEMS).map(drawn).batch(24).map(sorted).unbatch().sharding_filter(),
    "two points": lambda: mixed().sharding_filter().concat(IterableWrapper([]).sharding_filter()),
    "own point": lambda: OwnPoint(mixed().shuffle(buffer_size=2)),
    **{kind: lambda kind=kind: Drawing(kind).sharding_filter() for kind in ("random", "numpy", "torch")},
}


def by_number(item: int, generator: Any) -> list[Any]:
    return [generator.random() < 0.5, item]


def whole(pair: Any) -> bool:
    return len(pair) == 2


def numbers(loader: Any) -> list[int]:
    return [int(item[-1] if isinstance(item, list) else item) for item in loader]


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_each_item_once_and_epochs_differ(name: str, workers: int) -> None:
    torch.manual_seed(4)
    for persistent in {False, workers == 2}:
        loader = DataLoader(GRAPHS[name](), batch_size=None, num_workers=workers, persistent_workers=persistent)
        epochs = [numbers(loader) for _ in range(2)]
        for epoch in epochs:
            assert sorted(epoch) == ITEMS, persistent
        if name != "random_map":  # which keeps the order
            assert epochs[0] != epochs[1], persistent
        del loader


@pytest.mark.parametrize("name", ["mix", "random", "own point"])
def test_manual_seed_fixes_the_run(name: str) -> None:
    def run() -> list[list[int]]:
        torch.manual_seed(5)
        random.seed(5)
        loader = DataLoader(GRAPHS[name](), batch_size=None, num_workers=2)
        return [numbers(loader) for _ in range(2)]

    assert run() == run()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["mix", "window_shuffle", "torch"])
def test_each_item_once_under_stateful_dataloader(name: str, persistent: bool) -> None:
    loader = StatefulDataLoader(GRAPHS[name](), batch_size=None, num_workers=2, persistent_workers=persistent)
    epochs = [numbers(loader) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == ITEMS
    assert epochs[0] != epochs[1]


def test_ranks_draw_alike_too() -> None:
    """As torch's loader tells the workers of two ranks: one seed for all, (2 workers x 2 ranks) parts."""
    for name in GRAPHS:
        got, orders = [], []
        for part in range(4):
            random.seed(part)
            torch.manual_seed(part)
            graph = GRAPHS[name]()
            graph_settings.apply_sharding(graph, 4, part)
            graph_settings.apply_random_seed(graph, torch.Generator().manual_seed(8))
            orders.append(numbers(graph))
            got += orders[-1]
        if name != "own point":  # which keeps no seed
            assert sorted(got) == ITEMS, name


def test_what_stands_behind_a_point_draws_apart() -> None:
    graph = IterableWrapper([0] * 8).sharding_filter().random_map(lambda _, generator: float(generator.random()))
    for persistent in (False, True):
        loader = DataLoader(graph, batch_size=None, num_workers=2, persistent_workers=persistent)
        rows = [*loader, *loader]
        assert len(set(rows)) == 16


def test_a_graph_within_a_function_has_a_seed_of_its_own_each_time() -> None:
    def shuffled(item: int) -> list[int]:
        return list(IterableWrapper(range(50)).shuffle())

    loader = DataLoader(IterableWrapper(range(4)).sharding_filter().map(shuffled), batch_size=None, num_workers=2)
    assert len({tuple(row) for row in loader}) == 4


def test_another_graph_in_a_worker_is_whole_and_draws_anew() -> None:
    """A table to look things up in, or samples to compare with, in a function of the graph that a loader runs."""
    table = IterableWrapper(range(4)).sharding_filter()
    others = IterableWrapper(range(1000)).shuffle().sharding_filter()

    def look(item: int) -> Any:
        return item, list(table), next(iter(others))

    graph = IterableWrapper(range(8)).sharding_filter().map(look)
    found = list(DataLoader(graph, batch_size=None, num_workers=2))
    assert sorted(item for item, _, _ in found) == list(range(8))
    assert all(whole == [0, 1, 2, 3] for _, whole, _ in found)
    assert len({drawn_ for _, _, drawn_ in found}) > 4


def test_after_a_look_with_torchs_loader_ours_divide_and_seed_as_ever() -> None:
    from reading_services import MultiProcessingReadingService
    from torchpipe import DataLoader2

    graph = IterableWrapper(range(50)).shuffle().sharding_filter().random_map(lambda item, rng: (item, rng.random()))
    list(DataLoader(graph, batch_size=None))
    assert list(graph) != list(graph)
    found = []
    for seed in (1, 2):
        with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
            loader.seed(seed)
            found.append([item for item, _ in loader])
    assert sorted(found[0]) == sorted(found[1]) == list(range(50))
    assert found[0] != found[1]
