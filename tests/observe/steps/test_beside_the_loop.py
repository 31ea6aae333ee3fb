"""Whoever looks beside the loop leaves it as it is, whatever users' objects remember."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.test_own_generators import both, loader
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper

ITEMS = 12


class Counting:
    """Counts its calls, and draws from a generator of its own."""

    def __init__(self) -> None:
        self.calls = 0
        self.own = np.random.default_rng(3)

    def __call__(self, item: int) -> tuple[int, int, float]:
        self.calls += 1
        return item, self.calls, float(self.own.random())


class Reading:
    """An iterable that goes on where it was left, with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < ITEMS:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class CountingData(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.made = Counting()

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        return self.made(index)


LOADERS: dict[str, Callable[[], Any]] = {
    "function": lambda: DataLoader2(IterableWrapper(range(ITEMS)).map(Counting())),
    "source": lambda: DataLoader2(IterableWrapper(Reading(), deepcopy=False)),
    "dataset": lambda: DataLoader(CountingData(), None),
    "collate": lambda: DataLoader(range(ITEMS), 1, collate_fn=Counting()),  # type: ignore[arg-type]
}
LOOKS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda loader: list(loader.rows(range(3))),
    "later rows": lambda loader: list(loader.rows(range(6, 9))),
    "item_at": lambda loader: loader.item_at(7),
    "an earlier item_at": lambda loader: loader.item_at(1),
    "state_dict": lambda loader: loader.state_dict(),
    "skip(0)": lambda loader: loader.skip(0),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", LOADERS)
def test_a_loop_with_a_look_is_one_without(name: str, look: str) -> None:
    torch.manual_seed(0)
    with LOADERS[name]() as loader:
        wanted = [repr(item) for item in loader]
    torch.manual_seed(0)
    with LOADERS[name]() as loader:
        LOOKS[look](loader)
        stream = iter(loader)
        found = [repr(item) for item in islice(stream, 4)]
        LOOKS[look](loader)
        assert found + [repr(item) for item in stream] == wanted


def test_what_cannot_be_copied_is_refused_and_left_alone() -> None:
    opened = (number for number in range(ITEMS))
    with DataLoader2(IterableWrapper(opened, deepcopy=False)) as loader:
        stream = iter(loader)
        found = [next(stream)]
        with pytest.raises(StateError, match="takes a copy of the loader's data and functions"):
            loader.item_at(3)
        assert found + list(stream) == list(range(ITEMS))


@pytest.mark.parametrize("raises", [StopIteration("x"), KeyError("x")])
def test_what_a_dataset_raises_is_told_and_nothing_is_left_set(raises: Exception) -> None:
    class Fails(CountingData):
        def __getitem__(self, index: int) -> Any:
            raise raises

    def init(worker: int) -> None:
        raise OSError("no worker")

    with pytest.raises(RuntimeError if isinstance(raises, StopIteration) else KeyError):
        DataLoader(Fails(), None).item_at(2)
    with pytest.raises(OSError, match="no worker"):
        DataLoader(CountingData(), None, num_workers=2, worker_init_fn=init).item_at(2)
    assert torch.utils.data.get_worker_info() is None


def test_the_batch_of_a_step_draws_from_the_datasets_own_generators_as_the_loop_does() -> None:
    whole = list(loader(both()))
    for step in (0, 3):
        assert loader(both()).item_at(step) == whole[step]
