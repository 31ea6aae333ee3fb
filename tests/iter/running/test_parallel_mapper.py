"""``parallel_map``: several at a time, in order, bounded, with an exact state; draws from shared states refused."""

from __future__ import annotations

import gc
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.executors import make_service
from tests.sources import wait_until
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, IteratorInvalidated, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node


def uneven(item: int) -> int:
    time.sleep(random_wait(item))
    return item * item


def random_wait(item: int) -> float:
    """Later items are often done earlier."""
    return (item * 7919 % 5) / 2000


@given(st.lists(st.integers(0, 100), max_size=12), st.integers(1, 5), st.integers(1, 9))
def test_results_come_in_order(items: list[int], threads: int, buffer: int) -> None:
    node = IterableWrapper(items).parallel_map(uneven, num_threads=threads, buffer_size=buffer)
    assert len(node) == len(items)
    with iterate(node) as stream:
        assert list(stream) == [item * item for item in items]


def test_several_run_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=60)
    node = IterableWrapper(range(10)).parallel_map(lambda item: item and (barrier.wait(), item)[1], num_threads=3)
    with iterate(node) as stream:  # the first one alone
        assert list(stream) == list(range(10))


def with_generator(item: int, rng: np.random.Generator) -> Any:
    return item, float(rng.random())


def test_L2_exact_resume() -> None:
    def noisy(item: int) -> Any:
        return item, random.random()

    check_node(
        lambda: CountingSource(range(7)).parallel_map(uneven, num_threads=2, buffer_size=3),
        pulls=lambda k: min(7, k + 2),
        epochs=[0],
        num_shards=1,
    )
    check_node(
        lambda: (
            IterableWrapper(range(6))
            .map(noisy)
            .parallel_map(str, num_threads=2)
            .map(lambda text: (text, random.random()))
        ),
        global_random=True,
        epochs=[0],
        num_shards=1,
    )
    check_node(
        lambda: IterableWrapper(range(6)).shuffle().parallel_map(with_generator, num_threads=2, rng=True), epochs=[0]
    )


def test_columns() -> None:
    node = IterableWrapper([(1, 2, "a"), (3, 4, "b")])
    assert list(node.parallel_map(lambda x, y: x + y, [0, 1], -1)) == [(1, 2, "a", 3), (3, 4, "b", 7)]
    assert list(node.parallel_map(lambda x, rng: x, 0, rng=True)) == [(1, 2, "a"), (3, 4, "b")]


def test_L1_L3_in_workers_and_back() -> None:
    graph = IterableWrapper(range(60)).shuffle().sharding_filter().parallel_map(with_generator, num_threads=2, rng=True)
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


def fails_at(bad: int) -> Any:
    def fn(item: int) -> int:
        if item == bad:
            raise ValueError(f"bad: {item}")
        return item

    return fn


def test_L7_exceptions_come_in_their_place() -> None:
    for node in (
        IterableWrapper(range(9)).parallel_map(fails_at(5), num_threads=3),
        IterableWrapper(range(9)).map(fails_at(5)).parallel_map(lambda item: item, num_threads=3),
    ):
        got = []
        with iterate(node) as stream, pytest.raises(ValueError, match="bad: 5"):
            for item in stream:
                got.append(item)
        assert got == [0, 1, 2, 3, 4]
    node = IterableWrapper(range(9)).parallel_map(fails_at(5), num_threads=3).on_error("skip")
    with iterate(node) as stream:
        assert list(stream) == [0, 1, 2, 3, 4, 6, 7, 8]


def test_L2_no_state_is_taken_while_an_error_of_the_input_waits() -> None:
    """It would stand behind the bad item; a loader keeps the one before, and meets the error again."""
    graph = IterableWrapper(range(9)).map(fails_at(5)).parallel_map(lambda item: item, num_threads=2, buffer_size=4)
    with iterate(graph) as stream:
        assert [next(stream) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(StateError, match="has raised ValueError, which comes after the items"):
            stream.state_dict()
    with DataLoader2(graph, reading_service=make_service(None, 1, every=1)) as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
        state = loader.state_dict()
    with DataLoader2(graph, reading_service=make_service(None, 1)) as loader, pytest.raises(ValueError, match="bad: 5"):
        loader.load_state_dict(state)
        assert next(iter(loader)) == 4
        list(loader)


DRAWS: dict[str, Any] = {
    "python": lambda item: random.random(),
    "numpy": lambda item: np.random.rand(),
    "torch": lambda item: torch.rand(1),
}


@pytest.mark.parametrize("name", DRAWS)
def test_L1_draws_from_global_states_are_refused(name: str) -> None:
    node = IterableWrapper(range(9)).parallel_map(DRAWS[name], num_threads=2, buffer_size=1)
    with iterate(node.on_error("skip")) as stream, pytest.raises(GraphError, match=f"global random states .{name}"):
        list(stream)


def test_retries_in_threads() -> None:
    calls: dict[int, int] = {}

    def flaky(item: int, rng: np.random.Generator) -> Any:
        drawn = float(rng.random())
        calls[item] = calls.get(item, 0) + 1
        if calls[item] < 3:
            raise OSError("not yet")
        return item, drawn

    node = IterableWrapper(range(5))
    with iterate(node.parallel_map(flaky, num_threads=2, rng=True).retry(3, backoff_s=0)) as stream:
        got = list(stream)
    with iterate(node.parallel_map(with_generator, num_threads=2, rng=True)) as stream:
        assert got == list(stream)


def test_L6_threads_end_with_the_pass() -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("ParallelMapper")]

    node = IterableWrapper(range(100)).parallel_map(uneven, num_threads=3)
    stream = iterate(node)
    assert not threads()
    next(stream)
    assert len(threads()) == 3
    stream.close()
    assert not threads()
    abandoned = iterate(node)
    next(abandoned)
    del abandoned
    gc.collect()  # it refers to itself
    wait_until(lambda: not threads())


def test_an_interrupt_from_another_thread_ends_the_wait() -> None:
    gate, entered = threading.Event(), threading.Event()

    def wait(item: int) -> int:
        entered.set()
        gate.wait(60)
        return item

    with iterate(IterableWrapper(range(3)).parallel_map(wait, num_threads=1)) as stream:
        helper = threading.Thread(target=lambda: (entered.wait(60), stream.interrupt()))
        helper.start()
        with pytest.raises(IteratorInvalidated):
            next(stream)
        helper.join()
        gate.set()


@pytest.mark.parametrize("forge", [{"ahead": [1] * 9}, {"ahead": [1, 2], "pulled": 1}, {"pulled": -1}, {"key": [-1]}])
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    node = IterableWrapper(range(9)).parallel_map(str, num_threads=2)
    with iterate(node) as stream:
        next(stream)
        state = decode(encode(stream.state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | forge)


THREADS: dict[str, Any] = {
    "parallel_map": lambda node, count: node.parallel_map(with_generator, num_threads=count, rng=True),
}


@pytest.mark.parametrize("form", THREADS)
def test_L2_a_state_loads_under_another_number_of_threads(form: str) -> None:
    def loader(count: int) -> DataLoader2[Any]:
        made: DataLoader2[Any] = DataLoader2(THREADS[form](IterableWrapper(range(30)).shuffle(), count).batch(3))
        made.seed(3)
        return made

    def epochs(made: DataLoader2[Any]) -> list[Any]:
        return [list(made), list(made)]

    expected = epochs(loader(2))
    for done in (0, 1, 5, 10):
        begun = loader(2)
        stream = iter(begun)
        head = [next(stream) for _ in range(done)]
        for count in (1, 3, 4):
            again = loader(count)
            again.load_state_dict(begun.state_dict())
            rest, next_epoch = epochs(again)
            assert [head + rest, next_epoch] == expected


def test_the_argument_is_named_as_it_was_given() -> None:
    with pytest.raises(ValueError, match="num_threads must be at most 1024, got 2000"):
        IterableWrapper(range(3)).parallel_map(str, num_threads=2000)
