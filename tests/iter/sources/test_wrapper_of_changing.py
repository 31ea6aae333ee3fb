"""Iterables, and nodes with ``__iter__``, that count their epochs or draw from a generator: each pass has its own."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.iter import IterableWrapper


class Counts:
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = list(range(12))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1
        return iter(order)


class CountingNode(IterDataPipe[int]):
    def __init__(self) -> None:
        self.epoch = 0

    __iter__ = Counts.__iter__


class Draws:
    def __init__(self) -> None:
        self.rngs = [random.Random(1)]
        self.generator = torch.Generator().manual_seed(2)

    def __iter__(self) -> Iterator[int]:
        for _ in range(12):
            yield int(torch.randint(100, (), generator=self.generator))


def sampler() -> Any:
    return RandomSampler(range(12), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [lambda: IterableWrapper(Counts()), lambda: IterableWrapper(Draws()), CountingNode,
                                  lambda: IterableWrapper(sampler())])  # fmt: skip
def test_L1_L2_each_pass_begins_from_what_was_given(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    whole = list(DataLoader2(make()))
    assert len(whole) == 12
    loader = DataLoader2(make().sharding_filter(), reading_service=InProcessReadingService(num_shards=2))
    assert [list(loader) for _ in range(2)] == [whole, whole], "shards divide one order, in each epoch"
    loader = DataLoader2(make())
    list(loader)
    stream = iter(loader)
    next(stream), next(stream)
    other = DataLoader2(make())
    other.load_state_dict(loader.state_dict())
    assert list(other) == whole[2:]


def test_L7_what_no_later_pass_sees_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Own(Counts):
        pass

    class OwnNode(CountingNode):
        pass

    class Quiet(Counts):
        def __iter__(self) -> Iterator[int]:
            self.opened = True
            return iter(range(3))

    with caplog.at_level(logging.WARNING, "torchpipe"):
        for node in (IterableWrapper(Own()), OwnNode(), IterableWrapper(Quiet())):
            list(DataLoader2(node)), list(DataLoader2(node))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert (
        "iterating the iterable Own has changed Own.epoch. Each pass, so each epoch, begins from the object" in told[0]
    )
    assert "iterating OwnNode has changed OwnNode.epoch" in told[1]
