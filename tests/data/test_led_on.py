"""L2: what samplers and datasets keep goes on where the rest of an epoch is left out, and behind its last batch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from torchpipe import DataLoader

FORK: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}


class Drawing(Sampler[int]):
    """Draws from a generator of its own; counts its passes."""

    def __init__(self) -> None:
        self.random = torch.Generator().manual_seed(5)
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter([(index + self.passes) % 8 for index in torch.randperm(8, generator=self.random).tolist()])

    def __len__(self) -> int:
        return 8


class Told(Sampler[int]):
    """Says in a state where it stands, and goes on there in the next pass."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(8):
            self.at += 1
            yield self.at % 8

    def __len__(self) -> int:
        return 8

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Made(Dataset[int]):
    """Its samples count on from epoch to epoch."""

    made = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.made += 1
        return self.made

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


ORDERS: dict[str, Callable[[], Any]] = {
    "a sampler that draws": lambda: DataLoader(range(8), 2, sampler=Drawing()),  # type: ignore[arg-type]
    "a sampler with a state": lambda: DataLoader(range(8), 2, sampler=Told()),  # type: ignore[arg-type]
    "a dataset with a state": lambda: DataLoader(Made(), 2),
    "shuffled": lambda: DataLoader(Made(), 2, shuffle=True, generator=torch.Generator().manual_seed(1)),
}


def plain(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_L2_another_epoch_than_the_loaded_one_goes_on_from_where_it_was_left(name: str, looks: bool) -> None:
    loader = ORDERS[name]()
    plain(loader)
    for _ in zip(range(2), loader):
        pass
    state = loader.state_dict()
    loader.set_epoch(2)
    expected = plain(loader)
    other = ORDERS[name]()
    other.load_state_dict(state)
    if looks:
        next(iter(other))
    other.set_epoch(2)
    assert plain(other) == expected


class Counting(IterableDataset[int]):
    """Each pass in a process is another one."""

    passes = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([100 * self.passes + number for number in range(first, self.length, step)])


class GoingOn(Counting):
    """Says in a state how many records it has given, in all passes, and how many this one has left."""

    at, left = 0, -1

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        if self.left < 0:
            self.left = self.length if info is None else self.length // info.num_workers
        while self.left:
            self.left -= 1
            self.at += 1
            yield self.at
        self.left = -1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.left = state["at"], state["left"]


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("kind", [Counting, GoingOn])
@pytest.mark.parametrize("length", [3, 4, 5])  # in batches of 2 and of 3: the last one may be full or not, or the first
def test_L2_the_next_epoch_after_a_state_behind_any_batch(kind: type[Counting], workers: bool, length: int) -> None:
    def make() -> Any:
        return DataLoader(kind(length), 3, **FORK if workers else {})

    with make() as loader:
        batches = len(plain(loader))
    for count in range(1, batches + 1):
        with make() as loader:
            stream = iter(loader)
            for _ in range(count):
                next(stream)
            states = [loader.state_dict()]
            if kind is GoingOn:
                states.append(loader.state_dict(exact=True))
            rest, expected = plain(stream), plain(loader)
        for state in states:
            with make() as loader:
                loader.load_state_dict(state)
                assert plain(loader) == rest
                assert plain(loader) == expected, count


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@pytest.mark.parametrize("kind", [Counting, GoingOn])
def test_L4_a_worker_that_dies_behind_its_last_batch_gives_no_part_of_an_epoch_again(kind: type[Counting]) -> None:
    expected = None
    for dies in (False, True):
        with DataLoader(kind(4), 3, **FORK) as loader:
            stream = iter(loader)
            next(stream)
            if dies:
                os.kill(loader.worker_pids()[0], signal.SIGKILL)
            found = plain(stream) + plain(loader)
        assert expected in (None, found)
        expected = found
