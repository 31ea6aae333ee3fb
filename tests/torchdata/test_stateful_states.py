"""States that a real StatefulDataLoader has saved, loaded into ours: what follows is what would have followed there."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler, SubsetRandomSampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler as TorchdatasSampler

from tests.state.forging import places, replaced
from torchpipe import DataLoader
from torchpipe.errors import StateError
from torchpipe.torchdata.stateful_dataloader import StatefulDataLoader as OurStatefulDataLoader


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> int:
        return index


class Counting(Numbers):
    """Its state is how many samples it has read."""

    def __init__(self) -> None:
        self.read = 0

    def __getitem__(self, index: int) -> int:
        self.read += 1
        return 1000 * index + self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Stream(IterableDataset[int]):
    """23 numbers for each worker, of which the first has fewer."""

    def __iter__(self) -> Iterator[int]:
        worker = getattr(get_worker_info(), "id", 0)
        return iter(range(100 * worker, 100 * worker + (9 if worker == 0 else 23)))


class Spans:
    """An iterator with a state."""

    def __init__(self, first: int, length: int) -> None:
        self.at, self.end = first, first + length

    def __iter__(self) -> Spans:
        return self

    def __next__(self) -> int:
        if self.at == self.end:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StreamWithPlace(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        worker = getattr(get_worker_info(), "id", 0)
        return Spans(100 * worker, 9 if worker == 0 else 23)


class StreamThatKnows(IterableDataset[int]):
    """The state is the dataset's, not its iterator's."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        worker = getattr(get_worker_info(), "id", 0)
        while self.at < (9 if worker == 0 else 23):
            self.at += 1
            yield 100 * worker + self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Backwards(Sampler[int]):
    """A sampler with a state."""

    def __init__(self) -> None:
        self.at = 37

    def __iter__(self) -> Iterator[int]:
        while self.at:
            self.at -= 1
            yield self.at
        self.at = 37

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def plain(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def saved_after(batches: int, dataset: Any, **arguments: Any) -> tuple[dict[str, Any], list[Any]]:
    """What StatefulDataLoader saves after so many batches, and what it hands out after them."""
    loader: StatefulDataLoader[Any] = StatefulDataLoader(dataset, **arguments)
    stream = iter(loader)
    for _ in range(batches):
        next(stream)
    state = loader.state_dict()
    return state, plain(stream)


def resumed(state: dict[str, Any], dataset: Any, **arguments: Any) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, **arguments)
    loader.load_state_dict(state)
    batches = plain(loader)
    loader.shutdown()
    return batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4},
        {"batch_size": None},
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "generator": seeded},
        {"batch_size": 3, "sampler": lambda: TorchdatasSampler(Numbers(), generator=seeded())},
    ],
    ids=["sequential", "single", "shuffled", "drop_last", "shuffled, single", "generator", "torchdata's"],
)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_count_of_a_seeded_order_goes_on(workers: int, arguments: dict[str, Any], epoch: int) -> None:
    def made() -> dict[str, Any]:
        return {name: value() if callable(value) else value for name, value in arguments.items()}

    here = made() | ({"generator": torch.Generator()} if "shuffle" in arguments else {})
    theirs: StatefulDataLoader[Any] = StatefulDataLoader(Numbers(), num_workers=workers, **made())
    for _ in range(epoch):
        list(theirs)
    stream = iter(theirs)
    for _ in range(5):
        next(stream)
    state, rest = theirs.state_dict(), plain(stream)
    assert resumed(state, Numbers(), **here) == rest
    assert resumed(state, Numbers(), num_workers=1, **here) == rest


def test_what_was_loaded_is_saved_again_in_ours() -> None:
    state, rest = saved_after(3, Numbers(), batch_size=4, shuffle=True)
    loader: DataLoader[int] = DataLoader(Numbers(), batch_size=4, shuffle=True, generator=torch.Generator())
    loader.load_state_dict(state)
    for taken in range(2):  # before the next batch, and after it
        again = loader.state_dict()
        assert resumed(again, Numbers(), batch_size=4, shuffle=True, generator=torch.Generator()) == rest[taken:]
        if not taken:
            assert next(iter(loader)).tolist() == rest[0]


def test_with_snapshots_now_and_then() -> None:
    state, rest = saved_after(
        7, Numbers(), batch_size=2, num_workers=2, shuffle=True, snapshot_every_n_steps=5, generator=seeded()
    )
    assert state["_steps_since_snapshot"] == 2
    assert resumed(state, Numbers(), batch_size=2, shuffle=True, generator=torch.Generator()) == rest


def test_a_state_before_the_first_batch_and_one_after_the_last() -> None:
    state, everything = saved_after(0, Numbers(), batch_size=4, shuffle=True)
    assert resumed(state, Numbers(), batch_size=4, shuffle=True, generator=torch.Generator()) == everything
    state, rest = saved_after(10, Numbers(), batch_size=4)
    assert resumed(state, Numbers(), batch_size=4) == rest == []


class Passes:
    """Says where its pass stands, and how many passes there were."""

    place = passes = 0

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[int]:
        while self.place < 6:
            self.place += 1
            yield self.given()
        self.place = 0
        self.passes += 1

    def given(self) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.passes = state["place"], state["passes"]


class Order(Passes, Sampler[int]):
    def given(self) -> int:
        return (self.place - 1 + self.passes) % 6


class Data(Passes, IterableDataset[int]):
    def given(self) -> int:
        return 100 * self.passes + self.place


ENDED: dict[str, tuple[int, Any]] = {
    "sequential": (2, lambda: {"dataset": Numbers()}),
    "sampler with a state": (2, lambda: {"dataset": Numbers(), "sampler": Order()}),
    "dataset with a state": (0, lambda: {"dataset": Counting()}),
    "iterable dataset with a state": (0, lambda: {"dataset": Data()}),
    "iterable dataset": (2, lambda: {"dataset": Stream()}),
    "iterable dataset whose iterator has a state": (2, lambda: {"dataset": StreamWithPlace()}),
}


@pytest.mark.parametrize(
    ("name", "workers"), [(name, workers) for name, (most, _) in ENDED.items() for workers in range(0, most + 1, 2)]
)
def test_behind_an_epochs_end_the_next_one_follows(name: str, workers: int) -> None:
    arguments = ENDED[name][1]
    theirs: StatefulDataLoader[Any] = StatefulDataLoader(batch_size=3, num_workers=workers, **arguments())
    list(theirs)
    state = copy.deepcopy(theirs.state_dict())
    again: StatefulDataLoader[Any] = StatefulDataLoader(batch_size=3, num_workers=workers, **arguments())
    again.load_state_dict(copy.deepcopy(state))
    expected = [plain(theirs), plain(theirs)]
    assert plain(again) == expected[0]  # so they promise
    loader: DataLoader[Any] = DataLoader(batch_size=3, num_workers=workers, **arguments())
    loader.load_state_dict(state)
    other: DataLoader[Any] = DataLoader(batch_size=3, num_workers=workers, **arguments())
    other.load_state_dict(loader.state_dict())  # in our own form, before anything was read
    for found in (loader, other):
        assert [plain(found), plain(found)] == expected
        assert found.epoch == 3
        found.shutdown()


@pytest.mark.parametrize("sampler", [None, TorchdatasSampler, RandomSampler])
def test_the_next_epochs_order_is_drawn_from_the_generator_as_it_then_stands(sampler: Any) -> None:
    """As in the run that was saved: their own resume draws another one, as do their workers."""

    def made(generator: torch.Generator) -> dict[str, Any]:
        if sampler is None:
            return {"dataset": Numbers(), "shuffle": True, "generator": generator}
        return {"dataset": Numbers(), "sampler": sampler(Numbers(), generator=generator)}

    theirs: StatefulDataLoader[Any] = StatefulDataLoader(batch_size=4, **made(seeded()))
    list(theirs)
    state, second = copy.deepcopy(theirs.state_dict()), plain(theirs)
    found = resumed(state, batch_size=4, **made(seeded()))
    if sampler is RandomSampler:  # torch's own: its generator is in no state of theirs
        assert found == resumed({}, batch_size=4, **made(seeded()))
    else:
        assert found == second


def test_the_default_generator_draws_later_orders_anew() -> None:
    theirs: StatefulDataLoader[Any] = StatefulDataLoader(Numbers(), batch_size=4, shuffle=True)
    list(theirs)
    found = resumed(theirs.state_dict(), Numbers(), batch_size=4, shuffle=True)
    assert sorted(chain.from_iterable(found)) == list(range(37))


WITHIN: dict[str, tuple[str, Any]] = {
    "shuffled, and no generator here": ("generator=torch.Generator", lambda: {"dataset": Numbers(), "shuffle": True}),
    "sampler with a state": ("what a sampler says", lambda: {"dataset": Numbers(), "sampler": Backwards()}),
    "torch's own sampler": (
        "a count of what RandomSampler gave",
        lambda: {"dataset": Numbers(), "sampler": RandomSampler(Numbers(), generator=seeded())},
    ),
    "any other sampler": (
        "a count of what SubsetRandomSampler gave",
        lambda: {"dataset": Numbers(), "sampler": SubsetRandomSampler(range(30))},
    ),
    "drawn with replacement": (
        "a count of what RandomSampler gave",
        lambda: {"dataset": Numbers(), "sampler": RandomSampler(Numbers(), True, generator=seeded())},
    ),
    "dataset with a state": ("what a dataset says", lambda: {"dataset": Counting()}),
    "iterable dataset": ("within an iterable dataset", lambda: {"dataset": Stream()}),
    "iterable dataset with a state": ("within an iterable dataset", lambda: {"dataset": StreamThatKnows()}),
}


@pytest.mark.parametrize("name", WITHIN)
@pytest.mark.parametrize("workers", [0, 2])
def test_within_an_epoch_all_else_is_refused(name: str, workers: int) -> None:
    told, arguments = WITHIN[name]
    state, _ = saved_after(2, batch_size=4, num_workers=workers, **arguments())
    loader: DataLoader[Any] = DataLoader(batch_size=4, num_workers=workers, **arguments())
    with pytest.raises(StateError, match=f"{told}.*finish the epoch with StatefulDataLoader"):
        loader.load_state_dict(state)


def ended(**arguments: Any) -> dict[str, Any]:
    theirs: StatefulDataLoader[Any] = StatefulDataLoader(**{"batch_size": 3, **arguments})
    list(theirs)
    return theirs.state_dict()


def test_what_is_said_at_an_epochs_end_has_its_place_or_is_refused() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"dataset": Counting(), "num_workers": 2}, {"dataset": Counting(), "num_workers": 2}, "num_workers=2"),
        ({"dataset": Counting()}, {"dataset": Counting(), "num_workers": 2}, "num_workers=0"),
        ({"dataset": Counting()}, {"dataset": Numbers()}, "and Numbers"),
        ({"dataset": Data(), "num_workers": 2}, {"dataset": Data(), "num_workers": 2}, "num_workers=2"),
        ({"dataset": Data()}, {"dataset": Stream()}, "and Stream"),
        ({"dataset": Numbers(), "sampler": Order()}, {"dataset": Numbers()}, "has no state_dict"),
        (
            {"dataset": Numbers(), "sampler": Order(), "num_workers": 2, "snapshot_every_n_steps": 5},
            {"dataset": Numbers(), "sampler": Order()},
            "snapshot_every_n_steps",
        ),
    ]
    for theirs, ours, told in cases:
        loader: DataLoader[Any] = DataLoader(batch_size=3, **ours)
        with pytest.raises(StateError, match=f"{told}.*go on with StatefulDataLoader"):
            loader.load_state_dict(ended(**theirs))


def test_what_only_looks_like_such_a_state_is_refused() -> None:
    loader: DataLoader[int] = DataLoader(Numbers())
    with pytest.raises(StateError, match="none that is known"):
        loader.load_state_dict({"_snapshot": {}})
    for no_state in ({"a": 1}, {"model": {}}):
        with pytest.raises(StateError, match="not the state of a torchpipe DataLoader, nor of a StatefulDataLoader"):
            loader.load_state_dict(no_state)
    state, _ = saved_after(2, Numbers())
    with pytest.raises(StateError, match="a number was expected"):
        loader.load_state_dict({**state, "_num_yielded": -1})


def test_what_no_rank_saved_is_no_state_of_all_ranks() -> None:
    state, _ = saved_after(2, Numbers())
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        loader: DataLoader[int] = DataLoader(Numbers(), distributed=True)
        with pytest.raises(StateError, match="distributed="):
            loader.load_state_dict(state)
    finally:
        dist.destroy_process_group()


HOSTILE: list[Any] = [
    None, True, -1, 1.5, 2**31, 2**62, 2**100, "x", b"x", [], {}, [None], {"x": 1}, torch.zeros(3), object(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_L8_a_hostile_value_anywhere_is_a_state_error_or_another_position() -> None:
    """But for what is the user's own: a class that takes what it cannot use fails in its own words."""
    cases: list[tuple[int, Any, dict[str, Any]]] = [
        (2, Numbers(), {"batch_size": 3, "shuffle": True, "generator": seeded()}),
        (0, Numbers(), {"batch_size": 3, "sampler": Order()}),
        (0, Data(), {"batch_size": 3}),
        (0, StreamWithPlace(), {"batch_size": 3}),
    ]
    refused = 0
    for taken, dataset, options in cases:
        state = saved_after(taken, dataset, **options)[0] if taken else ended(dataset=dataset, **options)
        for path in places(state):
            if not path or {"at", "place", "passes"} & {*path}:
                continue
            for value in HOSTILE:
                loader: DataLoader[Any] = DataLoader(dataset, **options)
                try:
                    loader.load_state_dict(replaced(state, path, lambda _, value=value: value))
                    list(islice(loader, 20))
                except StateError:
                    refused += 1
                except Exception as error:
                    error.add_note(f"{value!r} at {path} of {state}")
                    raise
    assert refused > 100


def test_after_a_batch_that_raised_its_successor_follows() -> None:
    """Their sampler has gone on by then, and their count has not."""

    class Failing(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 10:
                raise LookupError(index)
            return index

    theirs = StatefulDataLoader(Failing(), batch_size=4)
    stream = iter(theirs)
    found = [next(stream), next(stream)]
    with pytest.raises(LookupError):
        next(stream)
    ours: DataLoader[int] = DataLoader(Failing(), batch_size=4)
    ours.load_state_dict(theirs.state_dict())
    assert len(found) == 2
    assert plain(ours)[0] == [12, 13, 14, 15]


def test_code_for_their_loader_keeps_its_arguments() -> None:
    """Positional ones, ``snapshot_every_n_steps``, copies; states are those of a DataLoader."""
    theirs: Any = OurStatefulDataLoader(Numbers(), 4, True, generator=seeded(), snapshot_every_n_steps=5)
    assert (theirs.batch_size, theirs.snapshot_every_n_steps) == (4, 5)
    stream = iter(copy.deepcopy(theirs))
    begun = [next(stream).tolist() for _ in range(2)]
    whole = [batch.tolist() for batch in theirs]
    assert whole[:2] == begun
    other: DataLoader[int] = DataLoader(Numbers(), 4, True, generator=torch.Generator())
    other.load_state_dict(OurStatefulDataLoader(Numbers(), 4, True, generator=seeded()).state_dict())
    assert [batch.tolist() for batch in other] == whole
    with pytest.raises(TypeError, match="snapshot_every_n_steps"):
        DataLoader(Numbers(), snapshot_every_n_steps=5)  # type: ignore[call-arg]
