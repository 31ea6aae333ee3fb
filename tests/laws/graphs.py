"""Random graphs for the property tests: a source, a sharding point somewhere, and a chain of nodes of every kind."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper

__all__ = ["GraphSpec", "build", "graph_specs", "text_of"]

GraphSpec = tuple[int, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...], bool]
"""(length of the source, steps before the sharding point, steps after it, is it a dispatcher?).

A step is a name and a small number.
"""

_BEFORE = ("shuffle", "shift", "repeat", "concat", "global_random", "item_random", "cycle", "batch")
_AFTER = (
    "shuffle",
    "shift",
    "global_random",
    "item_random",
    "filter",
    "flatmap",
    "flatmap_lazy",
    "batch",
    "batch_unbatch",
    "enumerate",
    "zip",
    "take",
    "cycle",
    "prefetch",
    "fork",
    "fork_lazy",
    "demux",
    "pack",
    "mix",
    "interleave",
    "rebatch",
    "by_length",
    "by_cost",
    "sort",
    "window_shuffle",
    "skip",
    "left_out",
    "retry",
    "parallel_map",
    "cache",
)


def graph_specs(max_length: int = 40, max_steps: int = 4) -> st.SearchStrategy[GraphSpec]:
    """Specs rather than graphs, so that a failing example prints, and rebuilds in another process."""

    def steps(names: tuple[str, ...], most: int) -> st.SearchStrategy[tuple[tuple[str, int], ...]]:
        step = st.tuples(st.sampled_from(names), st.integers(1, 5))
        return st.lists(step, max_size=most).map(tuple)

    return st.tuples(st.integers(0, max_length), steps(_BEFORE, 2), steps(_AFTER, max_steps), st.booleans())


def build(spec: GraphSpec) -> Any:
    """The graph that ``spec`` describes; every call makes new nodes."""
    length, before, after, dispatched = spec
    graph: Any = IterableWrapper(range(length))
    for name, number in before:
        graph = _step(graph, name, number)
    graph = graph.sharding_round_robin_dispatch() if dispatched else graph.sharding_filter()
    cached = False
    for name, number in after:
        if dispatched and name in ("cycle", "cache"):  # what is dispatched comes once: several rounds are refused
            name = "repeat"
        if cached and name == "left_out":  # refused behind a cache
            name = "skip"
        cached = cached or name == "cache"
        graph = _step(graph, name, number)
    return graph


def text_of(items: Any) -> list[str]:
    """Items in a form that compares exactly: floats by their shortest exact text, tensors by their values."""
    return [repr(item) for item in items]


def _step(graph: Any, name: str, number: int) -> Any:
    match name:
        case "shuffle":
            return graph.shuffle(buffer_size=number * 2)
        case "shift":
            return graph.map(_shift)
        case "repeat":
            return graph.repeat(number)
        case "concat":
            return graph.concat(IterableWrapper(range(100, 100 + number)))
        case "global_random":
            return graph.map(_global_random)
        case "item_random":
            return graph.random_map(_item_random)
        case "filter":
            return graph.filter(_Keep(number))
        case "flatmap":
            return graph.flatmap(_Copies(number))
        case "flatmap_lazy":
            return graph.flatmap(_lazy_copies)
        case "batch":
            return graph.batch(number)
        case "batch_unbatch":
            return graph.batch(number).unbatch()
        case "enumerate":
            return graph.enumerate()
        case "zip":
            return graph.zip(IterableWrapper(range(1000)).shuffle(buffer_size=number))
        case "take":
            return graph.take(number * 4)
        case "cycle":
            return graph.cycle(number % 3 + 1)
        case "prefetch":
            return graph.prefetch(number)
        case "fork":
            one, other = graph.fork(2)
            return one.zip(other.map(_shift))
        case "fork_lazy":
            one, other = graph.fork(2)
            return one.flatmap(_lazy_copies).zip(other)
        case "demux":
            low, high = graph.demux(2, _Keep(number))
            return low.zip(high.prefetch(number))
        case _:
            return _training_step(graph, name, number)


def _training_step(graph: Any, name: str, number: int) -> Any:
    match name:
        case "pack":
            strategy: Any = ("concat", "first_fit", "best_fit")[number % 3]
            options: Any = {} if strategy == "concat" else {"bins": number}
            return graph.map(_tokens).pack(4 * number, strategy=strategy, keep=["of"], **options)
        case "mix":
            others = IterableWrapper(range(1000)).shuffle(buffer_size=number)
            some = IterableWrapper([0]).concat(graph)  # an input that has nothing in a shard is an error
            return some.mix(others, weights={0: [number, 1], 9: [1, 1]}, by=_size, stop="first_exhausted")
        case "interleave":
            return graph.interleave(_lazy_numbers, cycle_length=number, block_length=2)
        case "rebatch":
            return graph.batch(3).rebatch(number)
        case "by_length":
            return graph.map(repr).bucket_by_length([12, 40], number)
        case "by_cost":
            return graph.map(repr).sort(number, len).dynamic_batch(1 << 20, max_items=2)
        case "sort":
            return graph.sort(number + 1, repr)
        case "window_shuffle":
            return graph.window_shuffle(number + 1)
        case "skip":
            return graph.skip(number)
        case "left_out":
            return graph.map(_Refuse(number)).on_error("skip", budget=None)
        case "retry":
            return graph.map(_global_random).retry(2)
        case "parallel_map":
            return graph.parallel_map(_item_random, num_threads=2, buffer_size=number, rng=True)
        case "cache":
            return graph.cache(chunk_items=number)
    raise AssertionError(name)


def _tokens(item: Any) -> dict[str, Any]:
    return {"tokens": repr(item)[:30].encode(), "of": len(repr(item))}


def _size(item: Any) -> int:
    return len(repr(item)) % 7


def _lazy_numbers(item: Any) -> Any:
    yield from ((index, item) for index in range(len(repr(item)) % 4))


class _Refuse:
    """Raises for some items, by their content."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, item: Any) -> Any:
        if sum(repr(item).encode()) % (self.number + 1) == 0:
            raise ValueError(f"refused: {item!r}")
        return item


def _shift(item: Any) -> Any:
    return ("shifted", item)


def _global_random(item: Any) -> Any:
    return item, random.random(), float(np.random.rand()), float(torch.rand(()))


def _item_random(item: Any, generator: np.random.Generator) -> Any:
    return item, float(generator.random())


class _Keep:
    """Keeps most items, by their content, so that shards lose different numbers."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, item: Any) -> bool:
        return sum(repr(item).encode()) % (self.number + 1) != 0


class _Copies:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, item: Any) -> list[Any]:
        return [(index, item) for index in range(self.number % 3)]


def _lazy_copies(item: Any) -> Any:
    for index in range(2):
        yield index, item, random.random()
