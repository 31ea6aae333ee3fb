"""What type checkers infer for pipelines, seen from a library user's file. Each ``assert_type`` is checked by mypy and
basedpyright; the functions also run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, assert_type

from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper, IterDataPipe, functional_datapipe
from torchpipe.map import MapDataPipe, SequenceWrapper
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator

T = TypeVar("T")


def half(number: int) -> float:
    return number / 2


def chain() -> list[Any]:
    source = IterableWrapper([1, 2])
    assert_type(source, IterableWrapper[int])
    texts = source.map(str)
    assert_type(texts, IterDataPipe[str])
    batches = texts.batch(2)
    assert_type(batches, IterDataPipe[list[str]])
    assert_type(IterableWrapper([1, 2]).map(str).batch(2), IterDataPipe[list[str]])
    assert_type(source.parallel_map(str, num_threads=2), IterDataPipe[str])
    assert_type(source.threadpool_map(str, max_workers=2), IterDataPipe[str])
    assert_type(source.zip(source).threadpool_map(half, 0), IterDataPipe[Any])
    return list(batches)


def long_chain() -> list[Any]:
    numbers = IterableWrapper(range(8)).filter(lambda number: number % 2 == 0).shuffle(buffer_size=4).sharding_filter()
    assert_type(numbers, IterDataPipe[int])
    counted = numbers.map(half).enumerate()
    assert_type(counted, IterDataPipe[tuple[int, float]])
    again = counted.cycle(2).header(3).prefetch(2)
    assert_type(again, IterDataPipe[tuple[int, float]])
    values = again.map(lambda pair: pair[1])
    assert_type(values, IterDataPipe[float])
    assert_type(values.concat(values), IterDataPipe[float])
    zipped = values.zip(numbers)
    assert_type(zipped, IterDataPipe[tuple[Any, ...]])
    for pair in again:
        assert_type(pair, tuple[int, float])
    return [len(list(zipped)), list(values.map(type))]


def loader() -> list[Any]:
    loader = DataLoader2(IterableWrapper([1, 2]).map(str).sharding_filter())
    assert_type(loader, DataLoader2[str])
    for item in loader:
        assert_type(item, str)
    return list(loader)


def map_style() -> list[Any]:
    source = SequenceWrapper(["a", "b"])
    lengths = source.map(len)
    assert_type(lengths, MapDataPipe[int])
    assert_type(lengths[0], int)
    streamed = lengths.to_iter_datapipe()
    assert_type(streamed, IterDataPipe[int])
    return list(streamed)


@functional_datapipe("test_doubled")
class Doubled(IterDataPipe[T]):
    """A user's node in the plain way: a generator."""

    def __init__(self, datapipe: IterDataPipe[T]) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Iterator[T]:
        for item in self.datapipe:
            yield item
            yield item


class Counted(IterDataPipe[int]):
    """A user's node with state."""

    def __init__(self, datapipe: IterDataPipe[Any]) -> None:
        self.datapipe = datapipe

    def iterate(self, context: Context) -> NodeIterator[int]:
        return CountedIterator(self, context, self.datapipe)


class CountedIterator(NodeIterator[int]):
    count = 0

    def run(self) -> Iterator[int]:
        for _ in self.source.items():
            self.count += 1
            yield self.count

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def own_nodes() -> list[Any]:
    source = IterableWrapper("ab")
    assert_type(Doubled(source).batch(2), IterDataPipe[list[str]])
    assert_type(Counted(source).map(float), IterDataPipe[float])
    return [list(source.test_doubled()), list(Counted(source))]  # own forms are known at run time only
