"""L7 through ``DataLoader``: what goes wrong arrives in its place, as its own type, and nothing ends in silence."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from tests.data.datasets import FailingAt, Killer, Numbers, text_of
from tests.laws.test_L7_odd_items import IN_PROCESS, LEGAL, item, unlike
from tests.measured import measured
from tests.tries import tries
from torchpipe import DataLoader
from torchpipe.data.fetch import read_infos
from torchpipe.errors import (
    IteratorInvalidated,
    NotSerializableError,
    ReplicatedSourceWarning,
    StateError,
    WorkerDiedError,
)

WORKERS = [0, 2]


class Odd(Exception):
    """Needs two arguments, so that its text alone cannot make another."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


ERRORS: dict[str, tuple[Callable[[], BaseException], type[BaseException]]] = {
    "ValueError": (lambda: ValueError("no"), ValueError),
    "IndexError": (lambda: IndexError("no"), IndexError),
    "KeyError": (lambda: KeyError("no"), KeyError),
    "StopIteration": (lambda: StopIteration("no"), RuntimeError),
    "of its own kind": (lambda: Odd(1, 2), Exception),
}


def batches_and_errors(loader: Any) -> list[Any]:
    """Of an epoch, in order: batches as lists, and errors themselves."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator).tolist())
        except StopIteration:
            return found
        except Exception as error:
            error.__traceback__ = None
            found.append(error)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", ERRORS)
def test_L7_an_exception_of_the_dataset_arrives_in_place_and_the_rest_follows(name: str, workers: int) -> None:
    make_error, kind = ERRORS[name]
    with DataLoader(FailingAt(14, (4, 13), make_error), 3, num_workers=workers) as loader:
        for _ in range(2):
            found = batches_and_errors(loader)
            assert found[0::2] == [[0, 1, 2], [6, 7, 8], found[4]]
            assert found[3] == [9, 10, 11]
            assert len(found) == 5
            for error, indices in ((found[1], "[3, 4, 5]"), (found[4], "[12, 13]")):
                assert isinstance(error, kind)
                assert not isinstance(error, StopIteration)
                assert indices in text_of(error)


class Named(Exception):
    """torch takes it for one that is made by ``message=``."""

    message = "a default"


class Silent(Exception):
    """Its text is its own."""

    def __str__(self) -> str:
        return "corrupt sample"


class Status(Exception):
    """Keeps its arguments."""

    def __init__(self, code: int, *, url: str) -> None:
        super().__init__(code, url)
        self.code, self.url = code, url


class Ending(StopIteration):
    """Taken for itself, it would end the loop."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first, second)


def odd_status() -> Status:
    return Status(503, url="s3://bucket")


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ExceptionGroup("fetching", [odd_status(), OSError("slow")]), "fetching (2 sub-exceptions)"),
        (lambda: Named("the cause"), "the cause"),
        (Silent, "corrupt sample"),
        (odd_status, "(503, 's3://bucket')"),
        (lambda: UnicodeDecodeError("utf-8", b"abc", 1, 2, "no byte"), "'utf-8' codec can't decode"),
    ],
)
def test_L7_an_exception_that_torch_cannot_make_again_is_itself(
    make: Any, text: str, workers: int, method: Any
) -> None:
    data = FailingAt(8, (5,), make)
    with DataLoader(data, 2, num_workers=workers, worker_method=method) as loader:
        stream = iter(loader)
        assert [next(stream).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(type(make())) as caught:
            next(stream)
        assert [batch.tolist() for batch in stream] == [[6, 7]]
    error = caught.value
    assert str(error).startswith(text)
    assert vars(error).get("code") == vars(make()).get("code")
    if isinstance(error, ExceptionGroup):
        assert [type(part) for part in error.exceptions] == [Status, OSError]
    told = "".join(traceback.format_exception(error))
    assert "in __getitem__" in told
    assert "raised by dataset[5]" in told
    assert "batch 2, of indices [4, 5]" in told


@pytest.mark.parametrize("workers", WORKERS)
def test_L7_no_kind_of_stop_iteration_ends_the_epoch(workers: int) -> None:
    with DataLoader(FailingAt(4, (1,), lambda: Ending(1, 2)), 2, num_workers=workers) as loader:
        error, rest = batches_and_errors(loader)
        assert type(error) is RuntimeError
        assert "raised by dataset[1]" in text_of(error)
        assert rest == [2, 3]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("measure", [False, True])
def test_L7_of_a_batch_the_sample_that_failed_is_named(workers: int, measure: bool) -> None:
    with measured(DataLoader(FailingAt(9, (4, 7), ERRORS["ValueError"][0]), 3, num_workers=workers), measure) as loader:
        _, second, third = batches_and_errors(loader)
        assert "raised by dataset[4]" in text_of(second)
        assert "raised by dataset[7]" in text_of(third)


def test_L7_an_exceptions_text_is_torchs() -> None:
    """Trainers look for it."""
    data = FailingAt(4, (1,), ERRORS["ValueError"][0])
    with DataLoader(data, 2, num_workers=1) as loader, pytest.raises(ValueError, match="no") as caught:
        list(loader)
    assert str(caught.value).startswith("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most")


@given(
    length=st.integers(1, 20),
    size=st.integers(1, 4),
    bad=st.sets(st.integers(0, 19), min_size=1, max_size=4),
    workers=st.integers(0, 2),
)
@settings(max_examples=tries(12))
def test_L7_all_that_can_be_read_is_read(length: int, size: int, bad: set[int], workers: int) -> None:
    """As torch's loader: each batch, or an error that names it."""
    data = FailingAt(length, tuple(bad), ERRORS["ValueError"][0])
    with DataLoader(data, size, num_workers=workers) as loader:
        found = batches_and_errors(loader)
    expected = [list(range(start, min(length, start + size))) for start in range(0, length, size)]
    assert len(found) == len(expected)
    for got, indices in zip(found, expected):
        if bad & set(indices):
            assert f"of indices {indices}" in text_of(got)
        else:
            assert got == indices


class RaisingIn:
    """A collate_fn, or a worker_init_fn, that raises for one of its arguments."""

    def __init__(self, at: Any) -> None:
        self.at = at

    def __call__(self, value: Any) -> Any:
        if value == self.at:
            raise ZeroDivisionError(f"at {value}")
        return value


@pytest.mark.parametrize("workers", WORKERS)
def test_L7_an_exception_of_collate_fn_names_its_indices(workers: int) -> None:
    with DataLoader(Numbers(9), 2, collate_fn=RaisingIn([2, 3]), num_workers=workers) as loader:
        iterator = iter(loader)
        assert next(iterator) == [0, 1]
        with pytest.raises(ZeroDivisionError, match=r"at \[2, 3\]") as caught:
            next(iterator)
        assert "of indices [2, 3]" in text_of(caught.value)
        assert list(iterator) == [[4, 5], [6, 7], [8]]


def failing_batches() -> Any:
    yield [0, 1]
    yield [2, 3]
    raise LookupError("the sampler's")


class Batches:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Any:
        return self.make()


@pytest.mark.parametrize("workers", WORKERS)
def test_L7_an_exception_of_the_sampler_comes_after_what_it_gave(workers: int) -> None:
    with DataLoader(Numbers(9), batch_sampler=Batches(failing_batches), num_workers=workers) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(LookupError, match="the sampler's"):
            next(iterator)


@pytest.mark.parametrize("data", [Numbers(9)])
@pytest.mark.parametrize("persistent", [False, True])
def test_L7_an_exception_of_worker_init_fn_is_raised(data: Any, persistent: bool) -> None:
    with DataLoader(data, worker_init_fn=RaisingIn(1), num_workers=2, persistent_workers=persistent) as loader:
        iterator = iter(loader)
        with pytest.raises(ZeroDivisionError, match="(?s)Caught .* in DataLoader worker process 1.*at 1") as caught:
            list(iterator)
        assert "raised by worker_init_fn" in text_of(caught.value)


class Failing(IterableDataset[int]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self) -> Any:
        yield from range(5)
        raise self.error


@pytest.mark.parametrize("workers", [0, 1])
def test_L7_an_exception_of_an_iterable_dataset_is_raised_behind_what_it_gave(workers: int) -> None:
    with DataLoader(Failing(ValueError("no more")), 2, num_workers=workers) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(ValueError, match="no more"):
            next(iterator)


SAMPLES: list[Any] = [
    None,
    ValueError("a sample"),
    StopIteration(),
    NotImplemented,
    Ellipsis,
    (),
    {},
    [None],
    b"",
    float,
]


class Samples:
    """Items that others take for marks of their own."""

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, index: int) -> Any:
        return SAMPLES[index]


def as_it_is(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("size", [None, 1, 3])
def test_L7_none_and_exceptions_are_samples_like_others(size: int | None, workers: int) -> None:
    with DataLoader(Samples(), size, collate_fn=as_it_is, num_workers=workers) as loader:  # type: ignore[arg-type]
        found = list(loader)
    flat = found if size is None else [sample for batch in found for sample in batch]
    assert list(map(repr, flat)) == list(map(repr, SAMPLES))


class OddItems:
    """What the odd items of graphs are made of, by name."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Any:
        return item(self.names[index])


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_L7_odd_items_arrive(options: dict[str, Any]) -> None:
    names = list(LEGAL)
    with DataLoader(OddItems(names), None, collate_fn=as_it_is, **options) as loader:  # type: ignore[arg-type]
        assert unlike(list(loader), names) == []


@pytest.mark.parametrize("name", IN_PROCESS)
def test_L7_what_cannot_leave_its_process_is_refused_in_its_place(name: str) -> None:
    dataset: Any = OddItems(["none", "true", name, "nan"])
    with DataLoader(dataset, None, collate_fn=as_it_is, num_workers=1) as loader:
        stream = iter(loader)
        assert unlike([next(stream), next(stream)], ["none", "true"]) == []
        with pytest.raises(NotSerializableError, match=IN_PROCESS[name][1]) as caught:
            next(stream)
    assert "the next batch was number 2" in text_of(caught.value)


@pytest.mark.parametrize("workers", WORKERS)
def test_L7_an_iterator_that_was_cut_off_says_so(workers: int) -> None:
    with DataLoader(Numbers(20), 2, num_workers=workers) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        loader.load_state_dict(state)
        with pytest.raises(IteratorInvalidated):
            next(iterator)
        iterator = iter(loader)
        assert next(iterator).tolist() == [2, 3]
        loader.shutdown()
        with pytest.raises(IteratorInvalidated):
            next(iterator)
        assert loader.state_dict()["delivered"] == 2
        finished = iter(loader)
        list(finished)
        loader.shutdown()
        assert list(finished) == []


@pytest.mark.parametrize("workers", WORKERS)
def test_L7_the_state_after_an_exception_goes_on_with_the_batch_that_failed(workers: int) -> None:
    with DataLoader(FailingAt(12, (4,), ERRORS["ValueError"][0]), 3, num_workers=workers) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="no"):
            next(iterator)
        state = loader.state_dict()
    with DataLoader(Numbers(12), 3, num_workers=workers) as other:
        other.load_state_dict(state, allow_other_data=True)
        assert [batch.tolist() for batch in other] == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_L7_what_is_said_of_an_iterable_dataset_is_in_words_of_the_loader(options: Any) -> None:
    with (
        DataLoader(Failing(ValueError("mine")), 3, **options) as loader,
        pytest.raises(ValueError, match="mine") as caught,
    ):
        list(loader)
    text = "".join(traceback.format_exception(caught.value))
    assert "torchpipe: raised in the dataset Failing for batch 1" + (" of worker 0 of 2" if options else "") in text
    assert "IterableWrapper for" not in text
    assert "shard 0" not in text


class KillerStream(IterableDataset[Any]):
    def __init__(self, *arguments: Any) -> None:
        self.killer = Killer(*arguments)

    def __iter__(self) -> Any:
        return (self.killer[index] for index in range(len(self.killer)))


@pytest.mark.parametrize("data", [Killer, KillerStream])
def test_L7_a_batch_that_kills_is_told_in_words_of_the_loader(
    data: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = data(12, str(tmp_path), ((5, "exit 1"),) * 3)
    with DataLoader(dataset, 2, num_workers=1) as loader, pytest.raises(WorkerDiedError) as caught:
        list(loader)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 2
    for text in (text_of(caught.value), *told):
        assert "making a batch" in text or "making one of" in text, text
        assert "shard" not in text
        assert "IterableWrapper" not in text
    assert "it has died 3 times here" in str(caught.value)
    if data is Killer:
        assert "the next batch was number 2, of [4, 5]" in text_of(caught.value)


class Whole(IterableDataset[int]):
    def __init__(self, asks: bool) -> None:
        self.asks = asks
        self.part = slice(None)

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        part = slice(info.id, None, info.num_workers) if self.asks and info is not None else self.part
        yield from range(6)[part]


def divide(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    vars(info.dataset)["part"] = slice(worker, None, info.num_workers)


def seed(worker: int) -> None:
    torch.manual_seed(worker)


@pytest.mark.parametrize(
    "options",
    [{}, {"persistent_workers": True}, {"multiprocessing_context": "spawn"}, {"worker_method": "thread"}],
    ids=str,
)
@pytest.mark.parametrize(
    ("asks", "init_fn", "workers", "whole"),
    [(False, None, 2, True), (False, seed, 2, True), (False, divide, 2, False), (True, None, 2, False)]
    + [(False, None, 1, False)],
)
def test_L7_a_dataset_that_every_worker_reads_whole_is_told(
    asks: bool, init_fn: Any, workers: int, whole: bool, options: dict[str, Any]
) -> None:
    read_infos.clear()  # of worker threads of other tests
    loader = DataLoader(Whole(asks), batch_size=None, num_workers=workers, worker_init_fn=init_fn, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sorted(loader) == sorted([*range(6)] * (workers if whole else 1))
    told = [str(item.message) for item in caught if item.category is ReplicatedSourceWarning]
    told = [text for text in told if "every sample comes 2 times" in text]
    assert len(told) == (whole and init_fn is None)


class Divided(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        yield from range(info.id, self.count, info.num_workers)


@pytest.mark.parametrize("taken", [5, 7])
@pytest.mark.parametrize("options", [{}, {"worker_method": "thread"}], ids=str)
def test_L7_a_stream_that_has_become_shorter_is_no_rest_without_samples(taken: int, options: dict[str, Any]) -> None:
    first = DataLoader(Divided(20), batch_size=2, num_workers=2, **options)
    stream = iter(first)
    for _ in range(taken):
        next(stream)
    state = first.state_dict()
    other = DataLoader(Divided(2 * taken - 2), batch_size=2, num_workers=2, **options)
    other.load_state_dict(state)
    with pytest.raises(StateError, match="has the data become shorter"):
        list(other)
