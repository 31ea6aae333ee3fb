"""What is refused, in torch's words where it refuses it too; and datasets and samplers that do what they should not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import DistributedSampler, IterableDataset, SequentialSampler, TensorDataset

from tests.data.datasets import Killer, Lines, Numbers, text_of
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import (
    GraphError,
    IteratorInvalidated,
    NotSerializableError,
    StateError,
    StateMismatchError,
    WorkerDiedError,
)
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper

REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "negative workers": (Numbers(9), {"num_workers": -1}),
    "negative timeout": (Numbers(9), {"timeout": -1}),
    "prefetch without workers": (Numbers(9), {"prefetch_factor": 2}),
    "negative prefetch": (Numbers(9), {"prefetch_factor": -2, "num_workers": 1}),
    "persistent without workers": (Numbers(9), {"persistent_workers": True}),
    "shuffle and sampler": (Numbers(9), {"shuffle": True, "sampler": SequentialSampler(Numbers(9))}),
    "batch_sampler and batch_size": (Numbers(9), {"batch_sampler": [[1]], "batch_size": 2}),
    "batch_sampler and shuffle": (Numbers(9), {"batch_sampler": [[1]], "shuffle": True}),
    "batch_size None and drop_last": (Numbers(9), {"batch_size": None, "drop_last": True}),
    "batch_size 0": (Numbers(9), {"batch_size": 0}),
    "batch_size -1": (Numbers(9), {"batch_size": -1}),
    "batch_size 1.5": (Numbers(9), {"batch_size": 1.5}),
    "batch_size True": (Numbers(9), {"batch_size": True}),
    "iterable and shuffle": (Lines(9), {"shuffle": True}),
    "iterable and sampler": (Lines(9), {"sampler": [1]}),
    "iterable and batch_sampler": (Lines(9), {"batch_sampler": [[1]]}),
    "context of no kind": (Numbers(9), {"multiprocessing_context": "fork bomb", "num_workers": 1}),
    "context of another type": (Numbers(9), {"multiprocessing_context": 5, "num_workers": 1}),
    "context without workers": (Numbers(9), {"multiprocessing_context": "fork"}),
    "no samples to shuffle": (Numbers(0), {"shuffle": True}),
    "drop_last of no truth": (Numbers(9), {"drop_last": 5}),
}


def refusal(kind: Any, data: Any, options: dict[str, Any]) -> tuple[type[BaseException], str] | None:
    try:
        kind(data, **options)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(name: str) -> None:
    expected = refusal(TorchDataLoader, *REFUSED[name])
    assert refusal(DataLoader, *REFUSED[name]) == expected
    assert expected is not None


@pytest.mark.parametrize("value", [-1, True, 1.5, "1", None])
@pytest.mark.parametrize(
    "name", ["batch_size", "sampler", "batch_sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_is_frozen_stays(name: str, value: Any) -> None:
    loaders = [kind(Numbers(9), 2) for kind in (TorchDataLoader, DataLoader)]
    found = []
    for loader in loaders:
        with pytest.raises(ValueError, match="should not be set after") as caught:
            setattr(loader, name, value)
        found.append(str(caught.value))
    assert found[0] == found[1]
    assert loaders[1].batch_size == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("index", [9, -10, 10**30])
def test_an_index_out_of_range_is_named(index: int, workers: int) -> None:
    with DataLoader(Numbers(9), batch_sampler=[[0], [3, index], [1]], num_workers=workers) as loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0]
        with pytest.raises(IndexError) as caught:
            next(iterator)
        assert f"batch 1, of indices [3, {index}]" in text_of(caught.value)
        assert [batch.tolist() for batch in iterator] == [[1]]


class ShorterThanItSays(Numbers):
    def __getitem__(self, index: int) -> Any:
        return [10, 20, 30][index]


class WithNone(Numbers):
    def __getitem__(self, index: int) -> Any:
        return None if index == 4 else index


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("data", "kind", "named"),
    [(ShorterThanItSays(6), IndexError, "[2, 3]"), (WithNone(6), TypeError, "[4, 5]")],
    ids=["IndexError", "None"],
)
def test_a_dataset_that_does_not_give_what_it_says(data: Any, kind: type[Exception], named: str, workers: int) -> None:
    with DataLoader(data, 2, num_workers=workers) as loader, pytest.raises(kind) as caught:
        list(loader)
    assert f"of indices {named}" in text_of(caught.value)


class Killing(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 7:
            os._exit(3)
        return super().__getitem__(index)


def test_a_dataset_that_kills_its_worker_at_one_index(caplog: pytest.LogCaptureFixture) -> None:
    with DataLoader(Killing(20), 2, num_workers=2) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(WorkerDiedError, match="exited with code 3") as caught:
            next(iterator)
        assert "[6, 7]" in text_of(caught.value)


class HoldingALock(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.guard_of_mine = threading.Lock()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_cannot_be_sent_is_named(context: str) -> None:
    loader = DataLoader(HoldingALock(9), num_workers=1, multiprocessing_context=context)
    with pytest.raises(NotSerializableError, match="attribute 'guard_of_mine' of its dataset"):
        iter(loader)
    assert loader.epoch == 0  # nothing is lost


def test_samplers_that_give_what_is_no_index() -> None:
    for workers in (0, 1):
        with (
            DataLoader(Numbers(9), batch_sampler=[5], num_workers=workers) as loader,
            pytest.raises(TypeError) as caught,
        ):  # type: ignore[list-item]
            list(loader)
        assert "of indices 5" in text_of(caught.value)
        with DataLoader(Numbers(9), 2, sampler=5, num_workers=workers) as loader, pytest.raises(TypeError):  # type: ignore[arg-type]
            iter(loader).__next__()


@pytest.mark.parametrize("state", [None, 5, "state", [], {"version": 1}])
def test_what_is_no_state(state: Any) -> None:
    with pytest.raises(StateError):
        DataLoader(Numbers(9)).load_state_dict(state)


def test_a_state_of_a_sampler_among_another_number_of_ranks_is_refused() -> None:
    """It would load: the count of batches is the same, and the batches are others."""
    saved, here = (
        DataLoader(range(40), batch_size=2, sampler=DistributedSampler(range(40), ranks, 0))  # type: ignore[arg-type]
        for ranks in (2, 1)
    )
    next(iter(saved))
    with pytest.raises(
        StateMismatchError, match=r"among 2 ranks, and this loader's divides among 1: .* distributed=True"
    ):
        here.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("options", "both"),
    [
        ({"dataset": Numbers(8)}, ["length=9", "length=8"]),
        ({"batch_size": 3}, ["batch_size=2", "batch_size=3"]),
        ({"shuffle": True}, ["SequentialSampler", "RandomSampler"]),
        ({"drop_last": True}, ["drop_last=False", "drop_last=True"]),
        ({"dataset": Lines(9)}, ["map-style", "iterable"]),
    ],
)
def test_a_state_of_another_loader_is_refused_with_both_sides(options: dict[str, Any], both: list[str]) -> None:
    loader = DataLoader(Numbers(9), 2)
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(**{"dataset": Numbers(9), "batch_size": 2, **options})
    with pytest.raises(StateMismatchError) as caught:
        other.load_state_dict(loader.state_dict())
    assert all(words in str(caught.value) for words in both)


class Slow(IterableDataset[int]):
    """Has no state, and takes ``pause_s`` for each of the first ten samples."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def __iter__(self) -> Iterator[int]:
        for number in range(12):
            if number < 10:
                time.sleep(self.pause_s)
            yield number


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_a_worker_that_makes_samples_again_does_not_hang(batch_size: int | None) -> None:
    """All of them take longer than one may."""
    first = DataLoader(Slow(0), batch_size=batch_size, num_workers=1)
    with first:
        stream = iter(first)
        for _ in range(10):
            next(stream)
        state = first.state_dict()
    with DataLoader(Slow(0.5), batch_size=batch_size, num_workers=1, timeout=4) as resumed:
        resumed.load_state_dict(state)
        assert [int(batch) for batch in resumed] == [10, 11]


def test_a_worker_that_does_not_answer_in_time() -> None:
    class Asleep(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 2:
                threading.Event().wait(100)
            return index

    loader = DataLoader(Asleep(4), num_workers=2, timeout=3)
    with loader:
        stream = iter(loader)
        assert [next(stream).tolist() for _ in range(2)] == [[0], [1]]
        with pytest.raises(
            RuntimeError,
            match=r"^DataLoader timed out after 3 seconds, waiting for worker 0 \(pid \d+\): worker 0 has not made "
            r"batch 2, of \[2\]$",
        ):
            next(stream)


def test_deaths_end_in_torchs_words_if_that_is_wanted(tmp_path: Any) -> None:
    data = Killer(20, str(tmp_path), ((5, "SIGKILL"),))
    with DataLoader(data, 2, num_workers=2, on_worker_death="raise") as loader:
        assert loader.epoch == 0
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed"):
            list(loader)


def test_a_graph_without_a_shuffle_is_not_read_in_order_when_shuffle_is_asked_for() -> None:
    graph = IterableWrapper(range(10))
    with pytest.raises(GraphError, match=r"this one has none: put \.shuffle"):
        DataLoader(graph, shuffle=True)
    assert sorted(int(item) for item in DataLoader(graph.shuffle(), shuffle=True)) == list(range(10))
    assert [int(item) for item in DataLoader(graph)] == list(range(10))


def test_two_loops_over_one_loader_are_told_to_make_two() -> None:
    loader = DataLoader(range(10))
    with pytest.raises(IteratorInvalidated, match="make two loaders"):
        list(zip(loader, loader))
    graph = DataLoader2(IterableWrapper(range(10)))
    with pytest.raises(IteratorInvalidated, match="make two loaders"):
        list(zip(graph, graph))


def test_a_loader_is_printed_with_what_it_reads() -> None:
    assert repr(DataLoader(range(1000), batch_size=3)) == (
        "<DataLoader: range of 1,000, batch_size=3, 0 workers, epoch 0>"
    )
    assert repr(DataLoader2(IterableWrapper(range(3)).shuffle().batch(2))) == (
        "<DataLoader2: IterableWrapper -> Shuffler -> Batcher, InProcessReadingService, epoch 0>"
    )


def test_what_is_no_graph_is_told_where_it_belongs() -> None:
    with pytest.raises(TypeError, match="DataLoader takes a dataset"):
        DataLoader2(TensorDataset(torch.ones(2)))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="form of iterable nodes"):
        SequenceWrapper(range(6)).parallel_map(str)  # type: ignore[attr-defined]
