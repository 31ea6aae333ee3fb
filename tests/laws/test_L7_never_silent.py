"""L7, never silent, never stuck: every failure arrives as what it was, in its place; nothing ends early without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import PROCESSES, make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, build, graph_specs, text_of
from tests.tries import tries
from torchpipe import IterDataPipe, NodeIterator
from torchpipe.errors import NotSerializableError, RemoteTraceback
from torchpipe.iter import IterableWrapper


class TwoArguments(Exception):
    """Its constructor takes other arguments than ``args`` holds: pickle alone cannot rebuild it."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"{what} ({code})")
        self.code = code


class FailAfter:
    """Counts what it sees, with state, and raises for the item after ``number``."""

    def __init__(self, number: int, error: type[Exception]) -> None:
        self.number, self.error, self.seen = number, error, 0

    def __call__(self, item: Any) -> Any:
        if self.seen >= self.number:
            raise self.error(7, "broken") if self.error is TwoArguments else self.error("broken")
        self.seen += 1
        return item

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


ERRORS = (ValueError, KeyError, StopIteration, GeneratorExit, TwoArguments, MemoryError, EOFError, TimeoutError)


@given(graph_specs(), st.integers(1, 3), st.integers(0, 12), st.sampled_from([ValueError, KeyError, TwoArguments]))
@settings(max_examples=tries(20))
def test_L7_an_error_arrives_in_its_place(spec: GraphSpec, shards: int, number: int, error: type[Exception]) -> None:
    def until_error(workers: int | None) -> tuple[list[str], str]:
        with make_loader(build(spec).map(FailAfter(number, error)), make_service(workers, shards)) as loader:
            got = []
            try:
                for item in loader:
                    got.append(repr(item))
            except error as raised:
                notes = "\n".join(raised.__notes__)
                assert re.search(rf"Mapper\(FailAfter\) for item {number} of shard \d of {shards}, epoch 0", notes), (
                    notes
                )
                assert loader.state_dict()["delivered"] == len(got)
                if workers:
                    assert re.search(r"in worker \d \(pid \d+\)", notes)
                    assert isinstance(raised.__cause__, RemoteTraceback)
                    assert "in __call__" in str(raised.__cause__)
                return got, repr(raised)
            return got, "no error"

    def whole(workers: int | None) -> list[str]:
        with make_loader(spec, make_service(workers, shards)) as loader:
            return text_of(loader)

    in_process, with_workers = until_error(None), until_error(shards)
    assert in_process == with_workers
    complete = whole(None)
    assert in_process[0] == complete[: len(in_process[0])]
    assert (in_process[1] == "no error") == (len(in_process[0]) == len(complete))


@pytest.mark.parametrize("error", [e for e in ERRORS if e is not GeneratorExit])
@pytest.mark.parametrize("workers", [None, 2])
def test_L7_errors_of_every_kind(error: type[Exception], workers: int | None) -> None:
    """A StopIteration out of a function is an error too (PEP 479), not the end of the epoch."""
    with make_loader(
        IterableWrapper(range(9)).sharding_filter().map(FailAfter(2, error)), make_service(workers, 2)
    ) as loader:
        got = []
        with pytest.raises(RuntimeError if error is StopIteration else error):
            for item in loader:
                got.append(item)
        assert got == [0, 1, 2, 3]
        assert next(iter(loader)) == 0  # the loader can be iterated again


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_L7_none_stopiteration_and_exceptions_are_items(workers: int | None, prefetch: int) -> None:
    items = [
        None,
        StopIteration(3),
        ValueError("an item"),
        StopIteration,
        None,
        Ellipsis,
        NotImplemented,
        GeneratorExit,
    ]
    graph = IterableWrapper(items).sharding_filter().prefetch(2).batch(1).unbatch()
    service = make_service(workers, 2, main_prefetch_cnt=prefetch) if workers else make_service(None, 2)
    with make_loader(graph, service) as loader:
        assert text_of(loader) == [repr(item) for item in items]


class StopsInside(IterDataPipe[int]):
    """A source whose iterator raises StopIteration from a helper in mid-stream: an error, not the end."""

    def iterate(self, context: Any) -> NodeIterator[int]:
        return _StopsInside(self, context)


class _StopsInside(NodeIterator[int]):
    def run(self) -> Iterator[int]:
        yield 1
        yield next(iter(()))


@pytest.mark.parametrize("workers", [None, 1])
def test_L7_stopiteration_within_a_node_is_no_end(workers: int | None) -> None:
    with (
        make_loader(StopsInside(), make_service(workers, 1)) as loader,
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        list(loader)


def first_word(text: str) -> str:
    return next(word for word in text.split() if word)  # StopIteration for an empty text


TEXTS = ["a b", "c", "", "d e"]


class RunGivesMap(IterDataPipe[str]):
    def iterate(self, context: Any) -> NodeIterator[str]:
        return _RunGivesMap(self, context)


class _RunGivesMap(NodeIterator[str]):
    def run(self) -> Iterator[str]:
        return map(first_word, TEXTS)


class IterGivesMap(IterDataPipe[str]):
    def __iter__(self) -> Iterator[str]:
        return map(str.upper, filter(first_word, TEXTS))


class Texts:
    def __iter__(self) -> Iterator[str]:
        return map(lambda one, other: one + first_word(other), TEXTS, TEXTS)


def words_of(texts: list[str]) -> Iterator[str]:
    return map(first_word, texts)


@pytest.mark.parametrize("workers", [None, 1])
@pytest.mark.parametrize(
    "graph",
    [RunGivesMap, IterGivesMap, lambda: IterableWrapper(Texts()), lambda: IterableWrapper([TEXTS]).flatmap(words_of)],
)
def test_L7_stopiteration_within_a_map_is_no_end(graph: Any, workers: int | None) -> None:
    with (
        make_loader(graph(), make_service(workers, 1)) as loader,
        pytest.raises(RuntimeError, match="StopIteration"),
    ):
        list(loader)


def test_a_map_gives_what_it_gave() -> None:
    given = map(lambda one, other: (one, other), filter(None, [0, 1, 2, 0, 3]), iter("abcd"))
    assert list(IterableWrapper([0]).flatmap(lambda _: given)) == [(1, "a"), (2, "b"), (3, "c")]


class OpenFile:
    def __call__(self, number: int) -> Any:
        return open(__file__, "rb") if number == 5 else number


def test_L7_an_item_that_cannot_be_sent_is_named() -> None:
    with make_loader(IterableWrapper(range(9)).sharding_filter().map(OpenFile()), make_service(2, 2)) as loader:
        got = []
        with pytest.raises(NotSerializableError, match="BufferedReader cannot be sent"):
            for item in loader:
                got.append(item)
        assert got == [0, 1, 2, 3, 4]


@pytest.mark.nightly
@pytest.mark.parametrize("context", PROCESSES)
def test_L7_lambdas_and_local_classes(context: str) -> None:
    class Local:
        def __call__(self, number: int) -> int:
            return number * 3

    class LocalError(Exception):
        pass

    def fail(number: int) -> int:
        if number == 12:
            raise LocalError("local", number)
        return number

    workers = 1 if context == "spawn" else 2  # each of whose workers imports torch anew
    graph = IterableWrapper(range(9)).sharding_filter().map(lambda number: number + 1).map(Local())
    with make_loader(graph, make_service(workers, 2, context=context)) as loader:
        assert list(loader) == [3 * (number + 1) for number in range(9)]
    with (
        make_loader(graph.map(fail), make_service(workers, 2, context=context)) as loader,
        pytest.raises(LocalError, match="local"),
    ):
        list(loader)


def test_L7_an_empty_shard_and_an_empty_epoch() -> None:
    for length in range(4):
        graph = IterableWrapper(range(length)).sharding_filter()
        assert oracle(graph, 3, 2) == [[repr(item) for item in range(length)]] * 2
        with make_loader(graph, make_service(3, 3)) as loader:
            assert [list(loader) for _ in range(2)] == [list(range(length))] * 2


def _of_a_graph(number: int) -> torch.Tensor:
    weight = torch.ones(3, requires_grad=True)
    return weight * number if number == 4 else weight


def test_L7_an_autograd_graph_is_not_dropped_in_silence() -> None:
    """A leaf that requires a gradient arrives as one; what was computed from it cannot, and says so at its place."""
    graph = IterableWrapper(range(8)).sharding_filter().map(_of_a_graph)
    with make_loader(graph, make_service(1, 1)) as loader:
        iterator = iter(loader)
        for _ in range(4):
            assert next(iterator).requires_grad
        with pytest.raises(NotSerializableError, match=r"shape \(3,\) belongs to an autograd graph .* detach\(\)"):
            next(iterator)
