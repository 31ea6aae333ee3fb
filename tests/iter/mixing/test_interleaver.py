"""``interleave``: the order of tf.data's, whatever is opened, exact within any of it."""

from __future__ import annotations

import queue
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.executors import make_service
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, ReplayWarning, StateError
from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

LENGTHS = st.lists(st.integers(0, 5), max_size=7)


def in_turn(lengths: list[int], cycle: int, block: int) -> list[tuple[int, int]]:
    """As tf.data describes it."""
    waiting = [[(number, index) for index in range(length)] for number, length in enumerate(lengths)]
    places: list[list[tuple[int, int]] | None] = [None] * cycle
    found, turn = [], 0
    while waiting or any(place is not None for place in places):
        if places[turn] is None and waiting:
            places[turn] = waiting.pop(0)
        place = places[turn]
        if place is not None:
            found += place[:block]
            ended = len(place) < block
            places[turn] = None if ended else place[block:]
        turn = (turn + 1) % cycle
    return found


def pairs(item: tuple[int, int]) -> Iterator[tuple[int, int]]:
    for index in range(item[1]):
        yield item[0], index


@given(LENGTHS, st.integers(1, 4), st.integers(1, 3))
def test_the_order_is_that_of_tf_data(lengths: list[int], cycle: int, block: int) -> None:
    node = IterableWrapper(list(enumerate(lengths))).interleave(pairs, cycle_length=cycle, block_length=block)
    assert list(node) == in_turn(lengths, cycle, block)


class Walk:
    """An iterator with state, which draws."""

    def __init__(self, item: tuple[int, int]) -> None:
        self.item, self.step = item, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.step == self.item[1]:
            raise StopIteration
        self.step += 1
        return self.item, self.step, random.random()

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


class Stairs:
    """Read by index until an IndexError."""

    def __init__(self, item: tuple[int, int]) -> None:
        self.item = item

    def __getitem__(self, index: int) -> Any:
        if index >= self.item[1]:
            raise IndexError(index)
        return self.item, index


class Plain(IterDataPipe[Any]):
    """A node without state."""

    def __init__(self, item: tuple[int, int]) -> None:
        self.item = item

    def __iter__(self) -> Iterator[Any]:
        yield from pairs(self.item)


def noisy_node(item: tuple[int, int]) -> IterDataPipe[Any]:
    return IterableWrapper(range(item[1])).shuffle().map(lambda value: (item[0], value, random.random()))


MAKERS: dict[str, Any] = {
    "generator": pairs,
    "list": lambda item: list(range(item[1])),
    "array": lambda item: np.arange(item[1]),
    "sequence": Stairs,
    "iterator with state": Walk,
    "node": noisy_node,
    "node without state": Plain,
    "both": lambda item: pairs(item) if item[0] % 2 else list(pairs(item)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_L2_exact_resume(name: str) -> None:
    items = list(enumerate([3, 0, 2, 4, 1]))
    check_node(
        lambda: CountingSource(items).interleave(MAKERS[name], cycle_length=2, block_length=2),
        pulls=lambda k: min(len(items), k + 2),
        global_random=True,
        epochs=[0],
        num_shards=1,
    )


def test_L2_files_go_on_at_their_place(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text("".join(f"{path.name}{line}\n" for line in range(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        check_node(lambda: IterableWrapper(paths).shuffle().interleave(open, cycle_length=2), epochs=[0], num_shards=1)
        iterator = iterate(IterableWrapper(paths).interleave(open, cycle_length=3))
        assert [next(iterator) for _ in range(4)] == ["a0\n", "b0\n", "c0\n", "a1\n"]


def test_nodes_have_random_streams_of_their_own() -> None:
    node = IterableWrapper([0, 1]).interleave(lambda _: IterableWrapper(range(9)).shuffle(), cycle_length=1)
    one = list(iterate(node, seed=1))
    assert one[:9] != one[9:]
    assert sorted(one[:9]) == list(range(9))
    assert one == list(iterate(node, seed=1)) != list(iterate(node, seed=1, epoch=1))


def test_L1_L3_in_workers_and_back() -> None:
    graph = IterableWrapper(list(enumerate([5] * 6))).sharding_filter().interleave(noisy_node, cycle_length=2)
    with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
        loader.seed(1)
        expected = list(loader)
    with DataLoader2(graph, reading_service=make_service(2, 2, every=3)) as loader:
        loader.seed(1)
        got = [item for _, item in zip(range(17), loader)]
        state = loader.state_dict()
    with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
        loader.load_state_dict(state)
        assert got + list(loader) == expected


def test_a_replay_is_announced_with_its_length() -> None:
    node = IterableWrapper(list(enumerate([5, 5, 5]))).interleave(pairs, cycle_length=2)
    iterator = iterate(node)
    iterator.drop(7)
    with pytest.warns(ReplayWarning, match="first 7 items"):
        iterate(node).load_state_dict(iterator.state_dict())


def draws_at_first(item: tuple[int, int]) -> Iterator[float]:
    offset = random.random()
    yield from (offset + index for index in range(item[1]))


def draws_when_called(item: tuple[int, int]) -> Iterator[float]:
    return iter([np.random.rand()] * item[1])


def draws_later(item: tuple[int, int]) -> Iterator[float]:
    yield 0.0
    yield random.random()
    yield 1.0


@pytest.mark.parametrize("fn", [draws_at_first, draws_when_called])
def test_L2_draws_that_could_not_be_made_again_are_refused(fn: Any) -> None:
    with pytest.raises(GraphError, match="draws from the global random states"):
        list(IterableWrapper([(0, 3)]).interleave(fn))


def test_L2_later_draws_are_refused_at_the_resume() -> None:
    node = IterableWrapper([(0, 3)]).interleave(draws_later)
    iterator = iterate(node)
    iterator.drop(2)
    resumed = iterate(node)
    with pytest.warns(ReplayWarning):
        resumed.load_state_dict(iterator.state_dict())
    before = random.getstate()
    with pytest.raises(GraphError, match="draws from the global random states"):
        next(resumed)
    assert random.getstate() == before


def test_what_another_thread_draws_meanwhile_is_no_fault_of_the_function() -> None:
    """Home-made prefetchers iterate in a thread while the main one trains."""
    asked, drawn = queue.SimpleQueue[int](), queue.SimpleQueue[None]()

    def waits_for_a_draw(item: int) -> Iterator[int]:
        asked.put(item)
        drawn.get()
        yield item

    found: list[int] = []
    node = IterableWrapper(range(3)).interleave(waits_for_a_draw)
    thread = threading.Thread(target=lambda: found.extend(iterate(node)))
    thread.start()
    for _ in range(3):
        asked.get(timeout=20)
        random.random()
        drawn.put(None)
    thread.join()
    assert found == [0, 1, 2]


def test_a_function_that_gives_nothing_iterable_is_an_error() -> None:
    with pytest.raises(TypeError, match="interleave needs something iterable, <lambda> returned 1"):
        list(IterableWrapper([1]).interleave(lambda item: item))


class Counting:
    def __call__(self, item: Any) -> list[Any]:
        return [item]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


@pytest.mark.parametrize(
    "forge",
    [{"turn": 2}, {"in_block": 1}, {"open": [None]}, {"open": [{"item": 1}, None]}, {"open": 3}, {"opened": -1}],
    ids=str,
)
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    node = IterableWrapper(list(enumerate([5, 5, 5]))).interleave(Walk, cycle_length=2)
    iterator = iterate(node)
    iterator.drop(3)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | forge)
    state["open"][0]["iterator"] = {"stop": 1}
    resumed = iterate(node)
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match="does not fit the iterator in Interleaver"):
        list(resumed)
