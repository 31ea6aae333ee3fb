"""Without ``generator=``: the epochs after a resume, in a script that does not put torch's default generator back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from tests.data.datasets import Augmented, Lines, epochs_of
from tests.exact import exact
from torchpipe import DataLoader

LENGTH = 23


@pytest.fixture(autouse=True)
def generator_put_back() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def script(**options: Any) -> DataLoader[Any]:
    """As it begins, each time it is run."""
    torch.manual_seed(0)
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(3)
    return DataLoader(Augmented(LENGTH), batch_size=1 if "batch_sampler" in options else 4, **options)


def text(batches: Any) -> list[str]:
    return [exact(batch) for batch in batches]


class Lazy(Sampler[int]):
    """Draws from torch's default generator when it is begun, and with every index."""

    def __iter__(self) -> Iterator[int]:
        first = int(torch.randint(LENGTH, ()))
        return itertools.chain([first], (int(torch.randint(LENGTH, ())) for _ in range(LENGTH - 1)))

    def __len__(self) -> int:
        return LENGTH


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {},
        {"shuffle": True, "num_workers": 1},
        {"sampler": SubsetRandomSampler(range(LENGTH))},
        {"sampler": WeightedRandomSampler([1.0] * 9 + [2.0] * 14, LENGTH)},
        {"sampler": RandomSampler(range(LENGTH), replacement=True)},
        {"sampler": DistributedSampler(range(LENGTH), 2, 1)},  # draws from nobody: the base seeds are all
        {"sampler": Lazy()},
        {"sampler": Lazy(), "num_workers": 2},
        {"sampler": Lazy(), "drop_last": True},  # drawn, and left out
        {"sampler": Lazy(), "generator": torch.Generator()},  # the base seeds come from elsewhere
        {"batch_sampler": BatchSampler(Lazy(), 4, drop_last=False)},
    ],
    ids=lambda options: "-".join(
        f"{name}={getattr(value, '__class__', value).__name__}" for name, value in options.items()
    ),
)
@pytest.mark.parametrize("delivered", [0, 2, 6, 8])
def test_L2_all_epochs_after_a_resume_are_those_of_an_unbroken_run(delivered: int, options: Any) -> None:
    def saved_and_followed(loader: DataLoader[Any]) -> tuple[Any, list[list[str]]]:
        left, state, found = delivered, None if delivered else loader.state_dict(), []
        for _ in range(4):
            rest = []
            for batch in loader:
                rest += [] if state is None else [exact(batch)]
                left -= 1
                state = loader.state_dict() if left == 0 else state
            found += [] if state is None else [rest]  # an empty one of an epoch whose last batch it counts
        return state, found

    with script(**options) as loader:
        state, expected = saved_and_followed(loader)
    with script(**options) as other:
        other.load_state_dict(state)
        assert [text(other) for _ in expected] == expected
    with script(**options) as other:  # loaded twice on the way
        other.load_state_dict(state)
        other.load_state_dict(other.state_dict())
        assert text(other) == expected[0]
        state = other.state_dict()
    with script(**options) as third:
        third.load_state_dict(state)
        assert [text(third) for _ in expected[1:]] == expected[1:]


def test_L2_iterable_datasets_too() -> None:
    def made() -> DataLoader[Any]:
        torch.manual_seed(0)
        return DataLoader(Lines(LENGTH), batch_size=4)

    loader = made()
    list(loader)
    state, expected = loader.state_dict(), [text(loader), text(loader)]
    other = made()
    other.load_state_dict(state)
    assert [text(other), text(other)] == expected


def at_the_end_of_an_epoch() -> tuple[Any, list[str]]:
    loader = script(shuffle=True)
    list(loader)
    return loader.state_dict(), text(loader)


def test_who_seeds_or_puts_back_the_default_generator_has_it_so() -> None:
    state, expected = at_the_end_of_an_epoch()
    seeded = epochs_of(Augmented(LENGTH), 3, seed=77, batch_size=4, shuffle=True)
    loader = script(shuffle=True)
    loader.load_state_dict(state)
    torch.manual_seed(77)
    # The epoch's number belongs to the augmentation, so the orders are compared
    assert [orders_of(loader), orders_of(loader)] == [orders_in(seeded[0]), orders_in(seeded[1])]
    torch.manual_seed(77)
    assert orders_of(loader) == orders_in(seeded[0])
    loader = script(shuffle=True)
    before = torch.get_rng_state()
    loader.load_state_dict(state)
    assert orders_of(loader) == orders_in(expected)
    torch.set_rng_state(before)  # late, as some trainers do
    assert orders_of(loader) == orders_in(epochs_of(Augmented(LENGTH), 1, seed=0, batch_size=4, shuffle=True)[0])


def orders_of(loader: DataLoader[Any]) -> list[str]:
    return orders_in(text(loader))


def orders_in(batches: list[str]) -> list[str]:
    """The indices, without the draws behind them."""
    indices = [batch.partition(", ('torch.Tensor', 'torch.float64'")[0] for batch in batches]
    assert all("torch.int64" in text and "float" not in text for text in indices)
    return indices


class Dropout:
    """What else a training draws from torch's default generator."""

    def __iter__(self) -> Iterator[Any]:
        yield torch.nn.functional.dropout(torch.ones(3))


def test_L2_whatever_else_draws_from_the_default_generator_goes_on_as_well() -> None:
    def run(validate: Any, state: Any = None) -> tuple[Any, list[str]]:
        training = script(shuffle=True)
        if state is not None:
            training.load_state_dict(state)
        found, kept = [], None
        for number in range(4):
            found.append("".join(orders_of(training)))
            list(validate)
            kept = training.state_dict() if number == 1 else kept
        return kept, found

    for validate in (DataLoader(Augmented(3)), TorchDataLoader(Augmented(3)), Dropout()):
        state, unbroken = run(validate)
        assert run(validate, state)[1][:2] == unbroken[2:]


def test_L2_the_default_generator_itself_stands_where_it_would() -> None:
    state, _ = at_the_end_of_an_epoch()
    expected = torch.get_rng_state()
    loader = script(shuffle=True)
    loader.load_state_dict(state)
    list(loader)
    assert torch.equal(torch.get_rng_state(), expected)
