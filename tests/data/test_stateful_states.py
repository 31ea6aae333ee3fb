"""States that a real StatefulDataLoader has saved, loaded into ours: what follows is what would have followed there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, SubsetRandomSampler, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.state.forging import places, replaced
from torchpipe import DataLoader
from torchpipe.errors import ReplayWarning, StateError


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
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": None, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "generator": seeded},
        {"batch_size": 3, "sampler": Backwards},
        {"batch_size": None, "sampler": Backwards},
    ],
    ids=["sequential", "shuffled", "drop_last", "single", "generator", "stateful sampler", "stateful sampler, single"],
)
def test_a_map_style_order_goes_on(workers: int, arguments: dict[str, Any]) -> None:
    def made() -> dict[str, Any]:
        return {name: value() if callable(value) else value for name, value in arguments.items()}

    state, rest = saved_after(5, Numbers(), num_workers=workers, **made())
    assert resumed(state, Numbers(), **made()) == rest
    assert resumed(state, Numbers(), num_workers=1, **made()) == rest


def test_what_was_loaded_is_saved_again_in_ours() -> None:
    state, rest = saved_after(3, Numbers(), batch_size=4, shuffle=True)
    loader: DataLoader[int] = DataLoader(Numbers(), batch_size=4, shuffle=True)
    loader.load_state_dict(state)
    stream = iter(loader)
    assert next(stream).tolist() == rest[0]
    again = loader.state_dict()
    assert resumed(again, Numbers(), batch_size=4, shuffle=True) == rest[1:]


def test_with_snapshots_now_and_then() -> None:
    state, rest = saved_after(7, Numbers(), batch_size=2, num_workers=2, shuffle=True, snapshot_every_n_steps=5)
    assert state["_steps_since_snapshot"] == 2
    assert resumed(state, Numbers(), batch_size=2, shuffle=True) == rest


def test_a_state_before_the_first_batch_and_one_after_the_last() -> None:
    state, everything = saved_after(0, Numbers(), batch_size=4, shuffle=True)
    assert resumed(state, Numbers(), batch_size=4, shuffle=True) == everything
    loader: StatefulDataLoader[int] = StatefulDataLoader(Numbers(), batch_size=4, shuffle=True, generator=seeded())
    list(loader)
    end, second = loader.state_dict(), plain(loader)
    assert resumed(end, Numbers(), batch_size=4, shuffle=True, generator=torch.Generator()) == second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_map_style_dataset_with_a_state(workers: int) -> None:
    state, rest = saved_after(5, Counting(), batch_size=2, num_workers=workers)
    assert resumed(state, Counting(), batch_size=2, num_workers=workers) == rest


def test_states_of_workers_need_as_many() -> None:
    state, _ = saved_after(5, Counting(), batch_size=2, num_workers=2)
    with pytest.raises(StateError, match="each of 2 workers.*num_workers=1"):
        DataLoader(Counting(), batch_size=2, num_workers=1).load_state_dict(state)
    state, _ = saved_after(5, StreamWithPlace(), batch_size=2, num_workers=2)
    with pytest.raises(StateError, match="2 workers divided.*num_workers=0"):
        DataLoader(StreamWithPlace(), batch_size=2).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("delivered", [1, 4, 11])
@pytest.mark.parametrize("dataset", [StreamWithPlace, StreamThatKnows])
def test_an_iterable_dataset_with_a_state(dataset: type[Any], workers: int, delivered: int) -> None:
    delivered = min(delivered, 4) if workers == 0 else delivered
    state, rest = saved_after(delivered, dataset(), batch_size=2, num_workers=workers)
    assert resumed(state, dataset(), batch_size=2, num_workers=workers) == rest


def test_an_iterable_dataset_resumed_is_saved_again() -> None:
    state, rest = saved_after(3, StreamThatKnows(), batch_size=2, num_workers=2)
    loader: DataLoader[int] = DataLoader(StreamThatKnows(), batch_size=2, num_workers=2)
    loader.load_state_dict(state)
    stream = iter(loader)
    assert [next(stream).tolist() for _ in range(3)] == rest[:3]
    again = loader.state_dict()
    loader.shutdown()
    assert resumed(again, StreamThatKnows(), batch_size=2, num_workers=2) == rest[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_without_a_state_is_replayed(workers: int) -> None:
    state, rest = saved_after(4, Stream(), batch_size=2, num_workers=workers)
    with pytest.warns(ReplayWarning, match="4 batches are made and dropped"):
        assert resumed(state, Stream(), batch_size=2, num_workers=workers) == rest


def test_an_order_that_is_not_in_the_state_is_told_of() -> None:
    state, _ = saved_after(2, Numbers(), batch_size=4, sampler=SubsetRandomSampler(range(30)))
    loader: DataLoader[int] = DataLoader(Numbers(), batch_size=4, sampler=SubsetRandomSampler(range(30)))
    with pytest.warns(ReplayWarning, match="which order the SubsetRandomSampler gave"):
        loader.load_state_dict(state)
    assert sum(map(len, plain(loader))) == 22


def test_what_only_looks_like_such_a_state_is_refused() -> None:
    loader: DataLoader[int] = DataLoader(Numbers())
    with pytest.raises(StateError, match="none that is known"):
        loader.load_state_dict({"_snapshot": {}})
    state, _ = saved_after(2, Numbers())
    with pytest.raises(StateError, match="a number was expected"):
        loader.load_state_dict({**state, "_num_yielded": -1})


HOSTILE: list[Any] = [
    None, True, -1, 1.5, 2**31, 2**62, 2**100, "x", b"x", [], {}, [None], {"x": 1}, torch.zeros(3), object(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_L8_a_hostile_value_anywhere_is_a_state_error_or_another_position() -> None:
    """But for what is the user's own: a class that takes what it cannot use fails in its own words."""
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Numbers(), {"batch_size": 3, "shuffle": True, "generator": seeded()}),
        (Numbers(), {"batch_size": 3, "sampler": Backwards()}),
        (Stream(), {"batch_size": 3}),
        (StreamWithPlace(), {"batch_size": 3}),
    ]
    refused = 0
    for dataset, options in cases:
        state, _ = saved_after(2, dataset, **options)
        for path in places(state):
            if not path or "at" in path:
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
