"""A look is no epoch: ``next(iter(loader))`` and ``loader.peek()`` leave a loop's epochs, and a loaded position."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from reading_services import MultiProcessingReadingService
from tests.data.datasets import Augmented, Lines, Numbers, StatefulNumbers, StatefulSampler, seeded
from tests.exact import exact
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper

FORK: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}


def shuffled(dataset: Any = None, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(dataset or Augmented(12), 2, shuffle=True, generator=generator, **options)


def graph(**options: Any) -> Any:
    node = IterableWrapper(range(6)).shuffle().sharding_filter()
    loader: Any = DataLoader2(node, reading_service=MultiProcessingReadingService(num_shards=2, **options))
    loader.seed(1)
    return loader


LOADERS: dict[str, Callable[[], Any]] = {
    "batches": shuffled,
    "workers": lambda: shuffled(**FORK),
    "workers that persist": lambda: shuffled(**FORK, persistent_workers=True),
    "threads": lambda: shuffled(Numbers(12), num_workers=2, worker_method="thread"),
    "device": lambda: shuffled(device="cpu"),
    "a stateful dataset": lambda: shuffled(StatefulNumbers(12)),
    "iterable": lambda: DataLoader(Lines(12), 2),
    "iterable, workers": lambda: DataLoader(Lines(12), 2, **FORK),
    "graph": graph,
    "graph, workers": lambda: graph(**FORK),
}
MORE: dict[str, Callable[[], Any]] = LOADERS | {
    "a stateful sampler": lambda: DataLoader(Augmented(12), 2, sampler=StatefulSampler(12)),
}


def look(loader: Any) -> None:
    next(iter(loader))


def look_and_keep(loader: Any) -> None:
    loader.stream = iter(loader)  # as a notebook's variable is kept
    next(loader.stream)


def begin_only(loader: Any) -> None:
    iter(loader)


LOOKS = (look, look_and_keep, begin_only, DataLoader.peek)


@pytest.mark.parametrize("way", LOOKS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", LOADERS)
def test_L2_all_epochs_are_trained_after_looks(name: str, way: Callable[[Any], Any]) -> None:
    items = 0
    with LOADERS[name]() as loader:
        for _ in range(1 if way in (look, look_and_keep) else 2):
            way(loader)
        while loader.epoch < 3:
            items += sum(1 for _ in loader)
    assert items == 18


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("name", MORE)
def test_L2_a_look_at_a_loaded_position_leaves_it(name: str) -> None:
    make = MORE[name]
    with seeded(5), make() as loader:
        stream = iter(loader)
        for _ in range(2):
            next(stream)
        state = loader.state_dict()
        rest = [*map(exact, stream), *map(exact, loader)]
    for way in LOOKS:
        with seeded(5), make() as loader:
            loader.load_state_dict(state)
            for _ in range(1 if way in (look, look_and_keep) else 2):
                way(loader)
            assert loader.epoch == 0
            assert [*map(exact, loader), *map(exact, loader)] == rest, way


@pytest.mark.parametrize("name", MORE)
def test_L1_a_peek_changes_nothing(name: str) -> None:
    with seeded(5), MORE[name]() as loader:
        expected = [exact(item) for _ in range(2) for item in loader]
    with seeded(5), MORE[name]() as loader:
        assert exact(loader.peek()) == exact(loader.peek()) == expected[0]
        found = list(map(exact, loader))
        loader.peek()
        assert found + list(map(exact, loader)) == expected


def test_a_peek_that_would_lose_a_position_is_refused() -> None:
    loader = shuffled()
    stream = iter(loader)
    next(stream)
    with pytest.raises(RuntimeError, match="an iterator is at work, or was left"):
        loader.peek()
    assert len(list(stream)) == 5
    with pytest.raises(LookupError, match="no item"):
        DataLoader2(IterableWrapper([])).peek()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["batches", "graph"])
def test_a_loop_that_counts_epochs_may_leave_them_early(name: str, count: int) -> None:
    """One that is left behind its first item may have been meant as a look, so that it is told."""
    epochs = []
    with LOADERS[name]() as loader, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        while loader.epoch < 3:
            epochs.append(loader.epoch)
            for number, _ in enumerate(loader, 1):
                if number == count:
                    break
    assert epochs == [0, 1, 2]
    assert ["counts as an epoch" in str(item.message) for item in told] == [True, True] * (count == 1)


@pytest.mark.parametrize("name", ["batches", "graph"])
def test_what_was_saved_was_no_look(name: str) -> None:
    with LOADERS[name]() as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in loader:
            break
        assert loader.state_dict()["delivered"] == 1
        assert loader.epoch == 1


@pytest.mark.parametrize("name", LOADERS)
def test_a_loop_of_looks_goes_from_epoch_to_epoch_and_is_told(name: str) -> None:
    with LOADERS[name]() as loader, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = []
        for _ in range(4):
            seen.append(exact(next(iter(loader))))
        assert loader.epoch == 3
        list(loader)
        assert loader.epoch == 4
    told = [str(item.message) for item in caught if "counts as an epoch" in str(item.message)]
    assert len(told) == 3
    if name == "graph":
        assert len({str(one) for one in seen[1:]}) > 1


@pytest.mark.parametrize("name", ["batches", "graph"])
@pytest.mark.parametrize("way", ["at the end", "within", "after a look"])
def test_L7_going_back_behind_a_loaded_position_is_told_once(name: str, way: str) -> None:
    within = way != "at the end"
    with seeded(5), LOADERS[name]() as loader:
        list(loader)
        stream = iter(loader)
        next(stream)
        if not within:
            list(stream)
        state = loader.state_dict()
    with seeded(5), LOADERS[name]() as loader:
        loader.load_state_dict(state)
        if way == "after a look":
            loader.peek()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader.set_epoch(2 - within)
            loader.set_epoch(0)
            loader.set_epoch(0)
        assert ["begin at loader.epoch" in str(warning.message) for warning in told] == [True]


def test_L1_a_peek_leaves_what_the_user_has_set() -> None:
    class Scaled(IterableDataset[int]):
        scale = passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter([self.scale + 10 * self.passes] * 4)

    dataset = Scaled()
    loader: Any = DataLoader(dataset, 2)
    for scale in range(3):
        dataset.scale = scale
        peeked = loader.peek().tolist() if scale else [10, 10]
        found = [batch.tolist() for batch in loader]
        assert found == [[scale + 10 * (scale + 1)] * 2] * 2
        assert peeked == found[0]
