"""L5 and L3 through ``DataLoader``: a state's size does not grow with its position, and it loads anywhere."""

from __future__ import annotations

import copy
import pickle
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

from tests.data.datasets import LazySampler, Numbers, StatefulSampler
from torchpipe import DataLoader

COUNT = 4000


def loader_of(name: str, **options: Any) -> DataLoader[Any]:
    data: Any = Numbers(COUNT)
    generator = torch.Generator().manual_seed(1)
    made: dict[str, dict[str, Any]] = {
        "sequential": {},
        "shuffled": {"shuffle": True},
        "with generator": {"shuffle": True, "generator": generator},
        "with replacement": {"sampler": RandomSampler(data, replacement=True, generator=generator)},
        "weighted": {"sampler": WeightedRandomSampler([1.0] * COUNT, COUNT, generator=generator)},
        "distributed": {"sampler": DistributedSampler(data, num_replicas=1, rank=0)},
        "batch sampler": {"batch_sampler": BatchSampler(RandomSampler(data), 2, drop_last=False)},
        "rollover": {"shuffle": True, "last_batch": "rollover", "generator": generator},
        "any": {"sampler": LazySampler(COUNT, COUNT)},
    }
    return DataLoader(data, **({} if name == "batch sampler" else {"batch_size": 2}), **made[name], **options)


NAMES = (
    "sequential",
    "shuffled",
    "with generator",
    "with replacement",
    "weighted",
    "distributed",
    "batch sampler",
    "rollover",
    "any",
)


@pytest.mark.parametrize("name", NAMES)
def test_L5_a_state_is_as_large_at_the_end_as_at_the_start(name: str) -> None:
    loader = loader_of(name)
    iterator = iter(loader)
    sizes = []
    for _ in range(3):
        for _ in range(500):
            next(iterator)
        sizes.append(len(loader.state_dict()["payload"]))
    assert max(sizes) - min(sizes) < 32
    assert max(sizes) < 30_000


def test_L5_places_of_a_sampler_are_forgotten_with_or_without_workers() -> None:
    for options in ({}, {"num_workers": 2}, {"device": "cpu"}):
        with DataLoader(Numbers(400), 2, sampler=StatefulSampler(400), **options) as loader:
            iterator = iter(loader)
            for _ in range(150):
                next(iterator)
            assert len(iterator._order._positions) < 20, options  # type: ignore[union-attr]


def test_L5_out_of_order_a_state_tells_of_what_is_under_way_only() -> None:
    with DataLoader(Numbers(2000), 2, num_workers=2, in_order=False, prefetch_factor=2) as loader:
        iterator = iter(loader)
        sizes = []
        for _ in range(900):
            next(iterator)
            sizes.append(len(loader.state_dict()["payload"]))
    assert max(sizes) < 30_000


@pytest.mark.parametrize("name", NAMES)
def test_L3_a_state_is_plain_and_means_the_same_wherever_it_is_read(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        loader = loader_of(name)
        iterator = iter(loader)
        for _ in range(40):
            next(iterator)
        state = loader.state_dict()
        kept = copy.deepcopy(state)
        expected = [batch.tolist() for batch in islice(iterator, 20)]
        assert state == kept  # it does not change when the loader goes on
        assert {type(value) for value in state.values()} <= {int, str, bool, bytes}
        for workers in (0, 2):
            torch.manual_seed(100 + workers)
            with loader_of(name, num_workers=workers) as other:
                other.load_state_dict(pickle.loads(pickle.dumps(state)))
                assert other.state_dict() == state  # before anything is drawn
                assert [batch.tolist() for batch in islice(other, 20)] == expected, workers
