"""L2 through ``DataLoader``: from any position the rest is the same, twice in a row, and over the end of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler

from tests.data.datasets import (
    LENGTH,
    Augmented,
    LazySampler,
    Lines,
    Numbers,
    StatefulNumbers,
    StatefulSampler,
    sampler_options,
)
from tests.exact import exact
from tests.tries import tries
from torchpipe import DataLoader
from torchpipe.errors import StateMismatchError

EPOCHS = 3
Maker = Callable[..., DataLoader[Any]]


def seeded_loader(name: str) -> Maker:
    """Makes loaders of a kind of sampler whose order depends on no global generator after its first epoch."""

    def make(**options: Any) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(7)
        data: Any = Augmented(LENGTH)
        found: dict[str, Any] = {"batch_size": 4, "generator": generator}
        if name == "stateful sampler":
            found["sampler"] = StatefulSampler(LENGTH)
        elif name == "stateful batch sampler":
            found = {"batch_sampler": StatefulBatches(LENGTH), "generator": generator}
        elif name == "batch sampler":
            found = {"batch_sampler": [[1, 2], [3], [4, 5, 6], [22]], "generator": generator}
        elif name == "sampler's own generator":
            found = {"batch_size": 4, "sampler": RandomSampler(data, num_samples=30, generator=generator)}
            found["generator"] = torch.Generator().manual_seed(8)
        elif name == "stateful dataset":
            data, found["shuffle"] = StatefulNumbers(LENGTH), True
        elif name == "iterable":
            data = Lines(LENGTH)
        elif name.startswith("rollover"):
            found |= {"last_batch": "rollover"}
            found |= {"sampler": StatefulSampler(LENGTH)} if "stateful" in name else {"shuffle": True}
        else:
            found = sampler_options(name)
            found.setdefault("generator", generator)
        return DataLoader(data, **found, **options)

    return make


class StatefulBatches(StatefulSampler):
    """A batch sampler that says itself where it stands."""

    def __iter__(self) -> Any:
        return iter(BatchesOf(self))

    def __len__(self) -> int:
        return (self.length + 4) // 5


class BatchesOf:
    def __init__(self, owner: StatefulBatches) -> None:
        self.indices = StatefulSampler.__iter__(owner)

    def __iter__(self) -> Any:
        while batch := list(islice(self.indices, 5)):
            yield batch


NAMES = (
    "sequential",
    "shuffle with generator",
    "weighted with generator",
    "replacement with generator",
    "distributed",
    "batch sampler",
    "stateful sampler",
    "stateful batch sampler",
    "sampler's own generator",
    "stateful dataset",
    "iterable",
    "rollover",
    "rollover, stateful",
)


def whole(make: Maker, **options: Any) -> list[list[str]]:
    with make(**options) as loader:
        return [[exact(batch) for batch in loader] for _ in range(EPOCHS)]


def resumed(make: Maker, stops: list[int], options: list[dict[str, Any]]) -> list[str]:
    """All batches of the epochs, by loaders each of which stops after so many and hands its state to the next."""
    found: list[str] = []
    state: dict[str, Any] | None = None
    for stop, option in zip([*stops, None], options):
        with make(**option) as loader:
            if state is not None:
                loader.load_state_dict(state)
            left = stop
            while loader.epoch < EPOCHS and left != 0:
                for batch in loader:
                    found.append(exact(batch))
                    if left is not None and (left := left - 1) == 0:
                        break
            state = loader.state_dict()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_L2_from_every_position_the_rest_is_the_same(name: str) -> None:
    make = seeded_loader(name)
    expected = [text for epoch in whole(make) for text in epoch]
    for stop in range(len(expected) + (name != "iterable")):  # whose end nobody sees before it is there
        assert resumed(make, [stop], [{}, {}]) == expected, stop


@given(st.sampled_from(NAMES), st.lists(st.integers(0, 20), min_size=1, max_size=3), st.data())
@settings(max_examples=tries(15))
def test_L2_by_any_number_of_workers_and_several_times_in_a_row(name: str, stops: list[int], data: Any) -> None:
    make = seeded_loader(name)
    expected = [text for epoch in whole(make) for text in epoch]
    counts = st.just(0) if name in ("stateful dataset", "iterable") else st.integers(0, 2)
    options: list[dict[str, Any]] = []
    for _ in range(len(stops) + 1):
        workers = data.draw(counts)
        options.append({"num_workers": workers})
        if workers:
            options[-1]["prefetch_factor"] = data.draw(st.integers(1, 4))
    found = resumed(make, stops, options)
    # Nobody sees the end of an iterable dataset before it is there: behind the last batch, another epoch may follow
    assert found[: len(expected)] == expected
    assert name == "iterable" or len(found) == len(expected)


@pytest.mark.parametrize("name", ["shuffle with generator", "stateful sampler", "rollover"])
def test_L2_with_workers_that_persist(name: str) -> None:
    make = seeded_loader(name)
    options = {"num_workers": 2, "persistent_workers": True}
    expected = [text for epoch in whole(make, **options) for text in epoch]
    for stop in (0, 3, len(expected) // EPOCHS, len(expected) // EPOCHS + 1):
        assert resumed(make, [stop], [options, options]) == expected, stop


@pytest.mark.parametrize("workers", [1, 2])
def test_L2_a_dataset_with_a_state_in_each_worker(workers: int) -> None:
    make = seeded_loader("stateful dataset")
    expected = [text for epoch in whole(make, num_workers=workers) for text in epoch]
    for stop in (1, 4, 6, 8):
        assert resumed(make, [stop], [{"num_workers": workers}] * 2) == expected, stop


@pytest.mark.parametrize("name", ["iterable", "shuffle with generator"])
def test_L2_with_torchs_seeding(name: str) -> None:
    make = seeded_loader(name)
    options = {"num_workers": 2, "worker_seeding": "torch"}
    expected = [text for epoch in whole(make, **options) for text in epoch]
    for stop in (0, 2, 5, 7):
        assert resumed(make, [stop], [options, options]) == expected, stop


def test_L2_an_iterable_datasets_workers_are_as_many_wherever_it_goes_on() -> None:
    make = seeded_loader("iterable")
    expected = list(whole(make, num_workers=2)[0])
    with make(num_workers=2) as loader:
        found = [exact(batch) for batch in islice(loader, 3)]
        state = loader.state_dict()
    for workers in (0, 1, 2, 3):
        with make(num_workers=workers) as other:
            other.load_state_dict(state)
            assert found + [exact(batch) for batch in other] == expected, workers


@given(st.integers(0, 14), st.integers(0, 14), st.integers(1, 3), st.integers(0, 2))
@settings(max_examples=tries(8))
def test_L2_out_of_order_every_batch_comes_once(first: int, second: int, workers: int, others: int) -> None:
    def make(workers: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Augmented(30), 2, shuffle=True, generator=generator, num_workers=workers, in_order=False)

    with make(0) as loader:
        expected = sorted(exact(batch) for batch in loader)
    found: list[str] = []
    state: dict[str, Any] = {}
    for workers_now, most in ((workers, first), (others, second), (workers, None)):
        with make(workers_now) as loader:
            loader.load_state_dict(state)
            if loader.epoch:
                break
            found += [exact(batch) for batch in islice(loader, most)]
            state = loader.state_dict()
    assert sorted(found) == expected


def test_L2_a_state_before_the_first_batch_begins_the_epoch_that_would_have_come() -> None:
    """The order has not been drawn: what it will be is known all the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        loader = DataLoader(Augmented(20), 3, shuffle=True)
        iterator = iter(loader)
        state = loader.state_dict()
        expected = [exact(batch) for batch in iterator]
        torch.manual_seed(10)
        other = DataLoader(Augmented(20), 3, shuffle=True)
        other.load_state_dict(state)
        assert [exact(batch) for batch in other] == expected


def test_L2_a_sampler_that_draws_from_the_global_generator_is_found_again() -> None:
    def make(workers: int) -> DataLoader[Any]:
        return DataLoader(Augmented(20), 3, sampler=LazySampler(20, 30, "torch random numpy"), num_workers=workers)

    with torch.random.fork_rng(devices=[]):
        for workers in (0, 2):
            loader = make(workers)
            iterator = iter(loader)
            next(iterator), next(iterator)
            state = loader.state_dict()
            expected = [exact(batch) for batch in iterator]
            with make(0) as other:
                torch.manual_seed(10)
                other.load_state_dict(state)
                assert [exact(batch) for batch in other] == expected


def test_L2_a_state_of_a_loader_at_work_loads_into_itself() -> None:
    loader = seeded_loader("shuffle with generator")()
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    expected = [exact(batch) for batch in iterator]
    for _ in range(2):
        loader.load_state_dict(state)
        assert loader.epoch == 0
        assert [exact(batch) for batch in loader] == expected
    following = [exact(batch) for batch in loader]
    loader.load_state_dict(state)
    assert [exact(batch) for _ in range(2) for batch in loader] == expected + following


def test_L2_the_epoch_is_the_one_that_iter_gives() -> None:
    for stop, epoch in ((0, 0), (3, 0), (6, 0), (7, 1), (12, 1)):
        loader = seeded_loader("shuffle with generator")()
        left = stop
        while left:
            for _ in loader:
                if not (left := left - 1):
                    break
        state = loader.state_dict()
        other = seeded_loader("shuffle with generator")()
        other.load_state_dict(state)
        assert other.epoch == epoch, stop
        iterator = iter(other)
        assert next(iterator, None) is None if stop in (6, 12) else next(iterator) is not None
        assert other.epoch == epoch + (stop in (6, 12)), stop


def test_L2_rollover_carries_what_is_left_and_says_how_long_the_epoch_is() -> None:
    with DataLoader(Augmented(10), 4, last_batch="rollover", collate_fn=indices_of) as loader:
        lengths = []
        found = []
        for _ in range(4):
            lengths.append(len(loader))
            found.append(list(loader))
        assert lengths == [2, 3, 2, 3] == [len(epoch) for epoch in found]
        assert found[1] == [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
        steps = [next(iterator) for iterator in [iter(loader)] for _ in range(len(loader))]
        assert [*steps, *loader] == [*found[0], *found[1]]  # a loop that counts its steps loses nothing
        state = loader.state_dict()
    with DataLoader(Augmented(10), 5, last_batch="rollover") as other, pytest.raises(ValueError, match="batch_size"):
        other.load_state_dict(state)
    with DataLoader(Augmented(10), 4) as other, pytest.raises(ValueError, match="rollover"):
        other.load_state_dict(state)


def indices_of(samples: list[Any]) -> list[int]:
    return [sample[0] for sample in samples]


def test_L2_places_that_nobody_can_ask_for_are_forgotten() -> None:
    """A sampler's state is kept for batches that are under way, not for those of the whole epoch."""
    with DataLoader(Augmented(400), 2, sampler=StatefulSampler(400), num_workers=2) as loader:
        iterator = iter(loader)
        for _ in range(150):
            next(iterator)
        assert len(iterator._order._positions) < 20  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("resumed_in", [1, 2])
def test_L2_a_sampler_that_is_told_its_epochs_is_not_told_an_old_one_again(workers: int, resumed_in: int) -> None:
    """A state of an epoch's last batch puts the sampler's epoch back to find the end; the next one has its own order.

    Whether the script goes on with the epoch that the state is of, which is empty, or with the one after it.
    """

    def make() -> DataLoader[int]:
        sampler: DistributedSampler[int] = DistributedSampler(range(8), 2, 0)  # type: ignore[arg-type]
        return DataLoader(range(8), batch_size=2, sampler=sampler, num_workers=workers)

    def epoch(loader: DataLoader[int], number: int, batches: int | None = None) -> list[list[int]]:
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        return [batch.tolist() for batch in islice(loader, batches)]

    whole, cut, again = make(), make(), make()
    wanted = [epoch(whole, number) for number in range(3)]
    epoch(cut, 0)
    epoch(cut, 1, batches=2)
    again.load_state_dict(cut.state_dict())
    assert wanted[2] != wanted[1]
    if resumed_in == 1:
        assert epoch(again, 1) == []
    assert epoch(again, 2) == wanted[2]


def padded(samples: list[Any], *, to: int) -> Any:
    return [*samples, *[0] * (to - len(samples))]


class Padded:
    def __init__(self, to: int) -> None:
        self.to, self.calls = to, 0

    def __call__(self, samples: list[Any]) -> Any:
        self.calls += 1
        return padded(samples, to=self.to)


@pytest.mark.parametrize(
    "make", [lambda to: partial(padded, to=to), Padded, lambda to: lambda items: padded(items, to=to)]
)
def test_L3_another_value_bound_to_collate_fn_is_refused(make: Any) -> None:
    def loader_of(to: int) -> DataLoader[Any]:
        return DataLoader(Numbers(9), 2, collate_fn=make(to))

    loader = loader_of(8)
    batches = list(islice(loader, 2))
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"saved: .*8.*here: .*7"):
        loader_of(7).load_state_dict(state)
    other = loader_of(8)
    other.load_state_dict(state)
    assert batches + list(other) == list(loader_of(8))
