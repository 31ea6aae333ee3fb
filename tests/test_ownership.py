"""Ownership: who keeps an item keeps it safe, whatever functions before and behind it change in place."""

from __future__ import annotations

import copy
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import text_of
from torchpipe import DataLoader2, IterDataPipe, NodeIterator, iterate
from torchpipe.errors import ItemChangedError
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.testing import check_node
from torchpipe.testing.compare import freeze

Graph = IterDataPipe[Any]


def record(number: int) -> dict[str, Any]:
    return {"x": number, "log": [number], "row": torch.zeros(6)[number % 5 :][:1], "array": np.arange(2.0)}


def change(item: Any) -> Any:
    """In place, as much of webdataset's code does it."""
    for part in item if isinstance(item, list | tuple) else [item]:
        if isinstance(part, list | tuple):
            change(part)
        elif isinstance(part, dict):
            part["x"] = 10 * part["x"] + 1
            part["log"].append(part["x"])
            part["row"] += 1
            part["array"] *= 2
    return item


def number_of(item: Any) -> int:
    return int(item["log"][0])


def parts_of(item: Any) -> Iterator[Any]:
    change(item)
    for number in range(3):
        yield {**copy.deepcopy(item), "part": number}


def pair_of(item: Any) -> list[Any]:
    return [change(item), copy.deepcopy(item)]


class _Window(NodeIterator[Any]):
    saved = ("recent",)
    recent: list[Any] = []

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.recent = [*self.recent[-1:], item]
            yield [copy.deepcopy(kept) for kept in self.recent]


class Window(IterDataPipe[Any]):
    """A node of a user's, that keeps the item before."""

    iterator = _Window

    def __init__(self, datapipe: Graph) -> None:
        self.datapipe = datapipe


def forked(graph: Graph, **options: Any) -> Graph:
    one, other = graph.fork(2, **options)
    return one.mux(other.batch(3).unbatch().map(change))


def dealt(graph: Graph) -> Graph:
    one, other = graph.demux(2, number_of_parity)
    return one.mux(other.map(change))


def number_of_parity(item: Any) -> int:
    return number_of(item) % 2


KEEPERS: dict[str, Callable[[Graph], Graph]] = {
    "parallel_map": lambda graph: graph.parallel_map(change, num_threads=2),
    "retry": lambda graph: graph.map(change).retry(2),
    "repeat": lambda graph: graph.repeat(3),
    "cycle": lambda graph: graph.cycle(2),
    "shuffle": lambda graph: graph.shuffle(buffer_size=4),
    "shuffle, shuffle": lambda graph: graph.shuffle(buffer_size=4).map(change).shuffle(buffer_size=3),
    "window_shuffle": lambda graph: graph.window_shuffle(4),
    "sort": lambda graph: graph.sort(4, number_of, reverse=True),
    "batch": lambda graph: graph.batch(4, last="repeat"),
    "unbatch": lambda graph: graph.batch(4).unbatch(),
    "rebatch": lambda graph: graph.batch(3).rebatch(4),
    "groupby": lambda graph: graph.groupby(number_of_parity, group_size=3),
    "bucket_by_length": lambda graph: graph.bucket_by_length([3, 6], 3, number_of),
    "dynamic_batch": lambda graph: graph.dynamic_batch(12, number_of),
    "mux": lambda graph: graph.mux(IterableWrapper(list(map(record, range(9))))),
    "mix": lambda graph: graph.mix(IterableWrapper(list(map(record, range(9)))), weights=[2, 1]),
    "zip_longest": lambda graph: graph.zip_longest(IterableWrapper([record(0)] * 3), fill_value=record(50)),
    "zip_with_iter": lambda graph: graph.zip_with_iter(
        IterableWrapper(list(map(record, range(8, -1, -1)))), number_of, buffer_size=9
    ),
    "zip_with_map": lambda graph: graph.zip_with_map(SequenceWrapper(list(map(record, range(9)))), number_of),
    "zip_with_map of a cache": lambda graph: graph.zip_with_map(
        SequenceWrapper(list(map(record, range(3)))).in_memory_cache(), number_of_parity
    ),
    "zip_with_map of a stream": lambda graph: graph.zip_with_map(
        IterableWrapper([(n, record(n)) for n in range(2)]).to_map_datapipe(), number_of_parity
    ),
    "flatmap of lists": lambda graph: graph.flatmap(pair_of),
    "flatmap of iterators": lambda graph: graph.shuffle(buffer_size=3).map(change).flatmap(parts_of),
    "flatmap of flatmaps": lambda graph: graph.flatmap(pair_of).map(change).flatmap(parts_of),
    "interleave": lambda graph: graph.interleave(parts_of, cycle_length=2),
    "cache": lambda graph: graph.cache(chunk_items=4),
    "fork": forked,
    "fork, deep": lambda graph: forked(graph, copy="deep"),
    "demux": dealt,
    "prefetch": lambda graph: graph.prefetch(3),
    "a user's node": Window,
}


DATA = [record(number) for number in range(6)]
AS_MADE = copy.deepcopy(DATA)


def graph_of(keeper: Callable[[Graph], Graph], *, sharded: bool = False) -> Graph:
    source = IterableWrapper(DATA)
    return keeper((source.sharding_filter() if sharded else source).map(change)).map(change)


@pytest.fixture(autouse=True)
def unchanged_data() -> Iterator[None]:
    yield
    assert freeze(DATA) == freeze(AS_MADE)


@pytest.mark.parametrize("name", KEEPERS)
def test_L2_functions_that_change_their_argument(name: str) -> None:
    check_node(lambda: graph_of(KEEPERS[name]), pulls=lambda k: 0, num_shards=1, epochs=(0,))


@pytest.mark.parametrize("name", KEEPERS)
def test_L1_in_two_shards_and_the_next_epoch_also_where_the_graph_lives_on(name: str) -> None:
    graph = graph_of(KEEPERS[name], sharded=True)
    expected = oracle(graph_of(KEEPERS[name], sharded=True), 2)
    loader = make_loader(graph, make_service(0, 2))
    assert [text_of(loader) for _ in range(2)] == list(expected)


def test_L1_L2_L4_in_workers_of_which_one_is_killed() -> None:
    keepers = ["parallel_map", "repeat", "fork", "shuffle, shuffle", "interleave"]
    graph = graph_of(lambda item: item.concat(*(KEEPERS[name](item) for name in keepers)), sharded=True)
    expected = oracle(graph, 2)[0]
    with make_loader(graph, make_service(2, 2, every=2)) as loader:
        got, states = [], {}
        for item in loader:
            got.append(repr(item))
            change(item)  # in the user's loop
            if len(got) % 20 == 0:
                states[len(got)] = loader.state_dict()
            if len(got) == 30:
                os.kill(pids(loader)[0], signal.SIGKILL)
    assert got == expected
    for place, state in states.items():
        again = DataLoader2(graph)
        again.load_state_dict(state)
        assert text_of(again) == expected[place:]


# --- strict mode

SHARED = record(3)


def shared(_: int) -> Any:
    """One object, each time."""
    return SHARED


class _OwnList(NodeIterator[Any]):
    saved = ("recent",)
    recent: list[int] = []

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.recent.append(item)
            yield self.recent


class OwnList(IterDataPipe[Any]):
    iterator = _OwnList

    def __init__(self, datapipe: Graph) -> None:
        self.datapipe = datapipe


class Hoards:
    """Changes what it has handed out before."""

    def __init__(self) -> None:
        self.before: list[Any] = []

    def __call__(self, number: int) -> Any:
        for item in self.before:
            item["x"] += 1
        self.before = [record(number)]
        return self.before[0]


FAULTS: dict[str, tuple[Callable[[], Graph], str]] = {
    "one object again and again": (
        lambda: IterableWrapper(range(9)).map(shared).shuffle(buffer_size=3).map(change),
        r"change in Mapper\(change\) has changed an item in place that Shuffler still keeps",
    ),
    "a node's own list": (
        lambda: OwnList(IterableWrapper(range(9))).batch(2),
        "Batcher keeps an item that was changed in place before it came again",
    ),
    "a function that keeps what it returns": (
        lambda: IterableWrapper(range(9)).map(Hoards()).sort(3, number_of),
        r"Sorter\(number_of\) keeps an item that was changed in place before it was to be handed out",
    ),
    "fork of the same": (
        lambda: forked(IterableWrapper(DATA).map(dict), copy="same"),
        r"has changed an item in place that Multiplexer still keeps",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_strict_mode_names_the_node_that_keeps_and_who_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = FAULTS[name]
    list(iterate(make()))
    SHARED.update(record(3))
    monkeypatch.setenv("TORCHPIPE_STRICT", "1")
    with pytest.raises(ItemChangedError, match=message):
        list(iterate(make()))
    SHARED.update(record(3))
    with make_loader(make().sharding_filter(), make_service(0, 2)) as loader, pytest.raises(ItemChangedError):
        list(loader)


def test_strict_mode_finds_what_is_saved_and_reaches_workers_that_are_older(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = IterableWrapper(range(40)).sharding_filter().map(Hoards()).shuffle(buffer_size=4)
    with make_loader(graph, make_service(2, 2, every=1)) as loader:
        assert len(list(loader)) == 40
        monkeypatch.setenv("TORCHPIPE_STRICT", "1")  # read when an epoch begins
        with pytest.raises(ItemChangedError, match="Shuffler keeps an item that was changed in place"):
            list(loader)
    iterator = iterate(graph)
    next(iterator)
    with pytest.raises(ItemChangedError, match="before it was saved in a state"):
        iterator.state_dict()


class Remembers:
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def __call__(self, number: int) -> bool:
        new = number % 5 not in self.seen
        self.seen.add(number % 5)
        return new


def test_strict_mode_tells_of_functions_that_remember_and_have_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPIPE_STRICT", "1")
    with pytest.warns(UserWarning, match=r"Remembers in Filter.*changes its own attributes .* has no state_dict"):
        assert list(iterate(IterableWrapper(range(8)).filter(Remembers()))) == [0, 1, 2, 3, 4]


class Rows:
    """A batch that is no list."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


def test_strict_mode_lets_go_of_what_a_node_has_made_something_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHPIPE_STRICT", "1")
    graph = IterableWrapper(DATA).map(copy.deepcopy).batch(3, wrapper_class=Rows)
    assert (
        len(list(graph.map(lambda batch: batch.items).map(lambda items: [change(item) for item in items])))
        == len(DATA) // 3
    )
    made: list[weakref.ref[Any]] = []

    def large(number: int) -> Any:
        array = np.full(1 << 20, number % 256, np.uint8)
        made.append(weakref.ref(array))
        return {"pixels": array}

    stream = iterate(IterableWrapper(range(400)).map(large).flatmap(lambda item: [len(item["pixels"])]))
    for _ in range(400):
        next(stream)
    alive = sum(ref() is not None for ref in made)
    assert 1 <= alive <= 260


def test_a_node_that_saves_what_it_keeps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held(_Window):
        def get_state(self) -> dict[str, Any]:
            return {"recent": self.kept_items(self.recent)}

    class Node(Window):
        iterator = Held

    monkeypatch.setenv("TORCHPIPE_STRICT", "1")
    iterator = iterate(Node(IterableWrapper(DATA)))
    next(iterator)
    with pytest.raises(TypeError, match="keeps_items = True"):
        iterator.state_dict()
