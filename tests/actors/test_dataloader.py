"""``DataLoader(worker_method=RayWorkers())``: workers on other machines by one argument of torch's loader."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from reading_services import RayWorkers
from tests.actors.cluster_rig import kill, texts
from torchpipe import DataLoader

HALF = RayWorkers(num_cpus=0.5)


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), torch.rand(3)


class Lines(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        return ((number, random.random()) for number in range(info.id, 60, info.num_workers))


def loader_over(dataset: Any, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    shuffle = None if isinstance(dataset, IterableDataset) else True
    return DataLoader(dataset, 4, shuffle=shuffle, **{"num_workers": 2, **options})


DATASETS = [pytest.param(Samples(), id="map"), pytest.param(Lines(), id="iterable", marks=pytest.mark.nightly)]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("seeding", ["batch", pytest.param("torch", marks=pytest.mark.nightly)])
def test_batches_are_those_of_worker_processes(dataset: Any, seeding: str) -> None:
    options = {"worker_seeding": seeding}
    wanted = texts(loader_over(dataset, **options))
    assert texts(loader_over(dataset, worker_method=HALF, **options)) == wanted


def test_two_epochs_with_workers_that_persist() -> None:
    wanted = loader_over(Samples(), persistent_workers=True)
    epochs = [texts(wanted) for _ in range(2)]
    loader = loader_over(Samples(), persistent_workers=True, worker_method=HALF)
    assert texts(loader) == epochs[0]
    pids = loader.worker_pids()
    assert texts(loader) == epochs[1]
    assert loader.worker_pids() == pids


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_state_goes_on_in_processes_and_back(dataset: Any) -> None:
    wanted = texts(loader_over(dataset))
    first = loader_over(dataset, worker_method=HALF)
    stream = iter(first)
    got = texts([next(stream) for _ in range(4)])
    second = loader_over(dataset)
    second.load_state_dict(first.state_dict())
    stream = iter(second)
    got += texts([next(stream) for _ in range(4)])
    third = loader_over(dataset, worker_method=HALF)
    third.load_state_dict(second.state_dict())
    assert got + texts(third) == wanted


class Slow(Samples):
    def __getitem__(self, index: int) -> Any:
        import time

        time.sleep(0.02)
        return super().__getitem__(index)


@pytest.mark.sample
def test_L4_a_killed_worker_is_replaced() -> None:
    wanted = texts(loader_over(Slow()))
    loader = loader_over(Slow(), worker_method=HALF)
    stream = iter(loader)
    got = texts([next(stream)])
    kill(loader.worker_pids()[0], signal.SIGKILL)
    got += texts(stream)
    assert got == wanted


@pytest.mark.nightly
def test_death_is_an_error_where_that_is_wanted() -> None:
    loader = loader_over(Slow(), worker_method=HALF, on_worker_death="raise")
    stream = iter(loader)
    next(stream)
    os.kill(loader.worker_pids()[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(stream)
