"""The graphs whose states the fuzz test changes, and the functions and sources in them."""

from __future__ import annotations

import datetime
import io
import pathlib
import random
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.map import SequenceWrapper

__all__ = ["AHEAD", "GRAPHS", "safe"]

Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    """A dataclass among the items."""

    number: int
    text: str


class Numbers(IterDataPipe[int]):
    """A plain generator: no state, so that it is replayed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)


class Counter:
    """A function with state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: Any) -> Any:
        self.calls += 1
        return self.calls, item

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if type(state["calls"]) is not int:
            raise TypeError("calls is no number")
        self.calls = state["calls"]


def odd(number: int) -> Any:
    """Items of many types that are kept as data."""
    kinds = (
        lambda: torch.full((2, 3), number),
        lambda: np.array([number, -number], dtype=">i4"),
        lambda: np.array([(number, 0.5)], dtype=[("a", "i4"), ("b", "f8")]),
        lambda: {"path": pathlib.PurePosixPath(f"a/{number}"), ("k", number): {number}},
        lambda: Pair(number, (number, None)),
        lambda: Record(number, "x"),
        lambda: [datetime.datetime(2020, 1, 1 + number % 28), Decimal(number), 2**70 + number],
        lambda: deque([OrderedDict(a=number), bytearray(b"ab"), 1j], 5),
    )
    return kinds[number % len(kinds)]()


def keep(item: Any) -> bool:
    return sum(safe(item).encode()[:200]) % 5 != 0


def tell(item: Any) -> Any:
    return "told", item, random.random(), float(np.random.rand()), float(torch.rand(()))


def lazily(item: Any) -> Any:
    for index in range(3):
        yield index, item


def draw(item: Any, generator: np.random.Generator) -> Any:
    return item, float(generator.random())


def safe(item: Any) -> str:
    """The item as text, whatever it is."""
    try:
        return repr(item)
    except Exception as error:
        return f"<{type(item).__name__}: {type(error).__name__}>"


class Walk:
    """An iterator with state."""

    def __init__(self, item: Any) -> None:
        self.item = item
        self.step = 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.step >= 5:
            raise StopIteration
        self.step += 1
        return self.step, self.item

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if type(state["step"]) is not int:
            raise TypeError("step is no number")
        self.step = state["step"]


class Stairs:
    """Read by index until an IndexError, without a length."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __getitem__(self, index: int) -> Any:
        if index >= 5:
            raise IndexError(index)
        return self.item, index


class Doubled(IterDataPipe[Any]):
    """A node over an input, without state: what it draws is known by a replay alone."""

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, random.random()
            yield item


class Slow(IterDataPipe[Any]):
    """A node over an input, with state of its own."""

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source
        self.seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            self.seen += 1
            yield self.seen, item

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if type(state["seen"]) is not int:
            raise TypeError("seen is no number")
        self.seen = state["seen"]


def text_file(number: int) -> Any:
    return io.TextIOWrapper(io.BytesIO("".join(f"{number} zwölf {line}\n" for line in range(6)).encode()), "utf-8")


def text(number: int) -> Any:
    return io.StringIO("".join(f"{number} {line}\n" for line in range(6)))


def read(item: Any) -> Any:
    return item[0], item[1].read()


def some_rows(number: int) -> Any:
    return torch.full((number % 3 // 2 + 1, 2), float(number))


def _rich() -> Any:
    return IterableWrapper(range(40)).shuffle(buffer_size=8).sharding_filter().map(tell).enumerate().batch(3)


def _odd() -> Any:
    return IterableWrapper(range(24)).sharding_filter().map(odd).shuffle(buffer_size=9)


def _chain() -> Any:
    graph = IterableWrapper(range(9)).cycle(2).sharding_filter().random_map(draw).filter(keep)
    return graph.concat(IterableWrapper(range(5))).repeat(2).take(20)


def _expanding() -> Any:
    return IterableWrapper(range(12)).sharding_filter().flatmap(lazily).map(Counter()).batch(4).unbatch()


def _replayed() -> Any:
    return Numbers(20).sharding_filter().zip(IterableWrapper(range(50)).shuffle(buffer_size=4))


def _dispatched() -> Any:
    return (
        IterableWrapper(range(30))
        .shuffle(buffer_size=6)
        .sharding_round_robin_dispatch()
        .map(tell)
        .shuffle(buffer_size=3)
    )


def _endless() -> Any:
    return IterableWrapper(range(7)).cycle().sharding_filter().shuffle(buffer_size=4)


def _nested() -> Any:
    return IterableWrapper(range(40)).sharding_filter().prefetch(2).random_map(draw).prefetch(3)


def _words(count: int) -> list[str]:
    return [f"word {number}" for number in range(count)]


def _late() -> Any:
    return IterableWrapper(_words(40)).shuffle(buffer_size=8).sharding_filter().shuffle(buffer_size=5).map(tell)


def _late_joined() -> Any:
    first = IterableWrapper(_words(12)).shuffle(buffer_size=4).concat(IterableWrapper([[n] for n in range(20)]))
    return first.shuffle(buffer_size=9).take(25).sharding_filter()


def _late_in_order() -> Any:
    """The buffer holds positions, as the filter after it strides over a map-style source."""
    return SequenceWrapper(_words(30)).to_iter_datapipe(list(range(29, 5, -1))).shuffle(buffer_size=6).sharding_filter()


def _map_shuffled() -> Any:
    return SequenceWrapper(_words(30)).shuffle().sharding_filter().map(tell)


def _map_shuffled_twice() -> Any:
    """A round's own order within a cycle, and a buffer of positions after."""
    return SequenceWrapper(_words(9)).shuffle(indices=[8, 1, 2, 3, 7]).shuffle(buffer_size=3).cycle(3).sharding_filter()


def _files() -> Any:
    return (
        IterableWrapper(range(7))
        .sharding_filter()
        .flatmap(text_file)
        .map(tell)
        .concat(IterableWrapper(range(3)).flatmap(text))
    )


def _walking() -> Any:
    return IterableWrapper(range(7)).shuffle(buffer_size=3).sharding_filter().flatmap(Walk).flatmap(Stairs)


def _doubled() -> Any:
    return Doubled(IterableWrapper(range(12)).shuffle(buffer_size=4).sharding_filter()).batch(3).map(tell)


def _slow() -> Any:
    return Slow(IterableWrapper(_words(25)).shuffle(buffer_size=4).sharding_filter()).map(tell)


def _device() -> Any:
    graph = IterableWrapper(_words(30)).shuffle(buffer_size=5).sharding_filter().map(len).map(some_rows)
    return graph.prefetch(2).to_device("cpu", prefetch=2, on_new_shape="drop").batch(2).enumerate()


def tokens(item: Any) -> Any:
    return {"tokens": safe(item)[:9].encode(), "of": len(safe(item))}


def size(item: Any) -> int:
    return len(safe(item))


def refuse(item: Any) -> str:
    if size(item) % 3 == 0:
        raise ValueError("refused")
    return safe(item)


def _packed() -> Any:
    mixed = IterableWrapper(_words(30)).shuffle(buffer_size=5).sharding_filter()
    mixed = mixed.mix(IterableWrapper(range(9)).shuffle(), weights=[2, 1], by=size, stop="restart")
    return (
        mixed.map(tokens)
        .pack(12, keep=["of"])
        .concat(mixed.map(tokens).pack(12, strategy="best_fit", bins=2, keep=["of"]))
    )


def _gathered() -> Any:
    graph = IterableWrapper(range(80)).window_shuffle(6).sharding_filter().skip(2).map(safe).sort(5, size)
    graph = graph.bucket_by_length([2, 3], 2, size).unbatch()
    return graph.dynamic_batch(6, size, overflow="keep").rebatch(3)


def _opened() -> Any:
    graph = IterableWrapper(range(9)).sharding_filter().interleave(Walk, cycle_length=3, block_length=2)
    graph = graph.on_error("raise").cache(chunk_items=4)
    return graph.parallel_map(safe, num_threads=2, buffer_size=3).map(refuse).on_error("skip")


GRAPHS: dict[str, Callable[[], Any]] = {
    "rich": _rich,
    "odd": _odd,
    "chain": _chain,
    "expanding": _expanding,
    "replayed": _replayed,
    "dispatched": _dispatched,
    "endless": _endless,
    "nested": _nested,
    "late": _late,
    "late joined": _late_joined,
    "late in order": _late_in_order,
    "map shuffled": _map_shuffled,
    "map shuffled twice": _map_shuffled_twice,
    "files": _files,
    "walking": _walking,
    "doubled": _doubled,
    "slow": _slow,
    "device": _device,
    "packed": _packed,
    "gathered": _gathered,
    "opened": _opened,
}

AHEAD = {"nested": 2, "device": 2}
"""In these, threads run so many items ahead."""
