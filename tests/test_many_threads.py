"""Loaders in many threads beside a main thread that draws: each stream is its own, and the process's states stay."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe import DataLoader2, InProcessReadingService, own_random_states
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.randomness import global_random


def with_noise(item: int, generator: np.random.Generator) -> tuple[int, float]:
    return item, float(generator.random())


def drawing(item: int) -> tuple[int, float, float, float]:
    return item, random.random(), float(np.random.randn()), float(torch.rand(()))


def loader_of(seed: int, graph: Any) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(graph)
    loader.seed(seed)
    return loader


def own_stream(seed: int) -> list[Any]:
    """Shuffled, with noise of its own."""
    return list(loader_of(seed, IterableWrapper(range(60)).shuffle(buffer_size=9).random_map(with_noise)))


def drawing_stream(seed: int) -> list[Any]:
    return list(loader_of(seed, IterableWrapper(range(200)).map(drawing)))


def seed_all() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


pytestmark = pytest.mark.filterwarnings("ignore:a loader makes items in thread")


def test_L1_ten_threads_and_a_main_thread_that_draws_and_takes_from_a_loader_that_draws() -> None:
    expected = {seed: own_stream(seed) for seed in range(10)}
    of_main = drawing_stream(11)
    seed_all()
    drawn = [drawing(index) for index in range(20)]
    found: dict[int, Any] = {}
    ended = threading.Event()

    def work(seed: int) -> None:
        found[seed] = own_stream(seed)

    def look() -> None:
        while not ended.is_set():
            np.random.get_state()  # as a checkpoint in a thread does

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(10)]
    looking = threading.Thread(target=look)
    for thread in [*threads, looking]:
        thread.start()
    try:
        seed_all()
        mine = []
        for index in range(20):
            mine.append(drawing(index))
            if index % 10 == 0:
                assert drawing_stream(11) == of_main
        for thread in threads:
            thread.join()
    finally:
        ended.set()
        looking.join()
    assert mine == drawn
    assert found == expected


def test_a_thread_that_draws_beside_the_owner_is_told() -> None:
    told: list[Any] = []

    def work() -> None:
        with pytest.warns(UserWarning, match=r"a loader makes items in thread 'second'.* torchpipe.own_random_states"):
            told.append(drawing_stream(1))

    global_random._warned.clear()
    thread = threading.Thread(target=work, name="second")
    thread.start()
    thread.join()
    assert len(told) == 1


def test_one_thread_owns_the_random_states_until_it_ends() -> None:
    expected = drawing_stream(1)
    found: list[Any] = []
    owned, go = threading.Event(), threading.Event()

    def own() -> None:
        own_random_states()
        found.append(drawing_stream(1))
        owned.set()
        go.wait(60)

    def refused() -> None:
        with pytest.raises(RuntimeError, match="thread 'first' owns the process's random states"):
            own_random_states()
        found.append("refused")

    first = threading.Thread(target=own, name="first")
    first.start()
    owned.wait(60)
    second = threading.Thread(target=refused)
    second.start()
    second.join()
    go.set()
    first.join()
    assert found == [expected, "refused"]
    assert drawing_stream(1) == expected  # the main thread's again


def test_L2_a_state_with_random_states_is_refused_where_a_thread_makes_the_items() -> None:
    loader = loader_of(1, IterableWrapper(range(8)).map(drawing))
    next(iter(loader))
    state = loader.state_dict()
    with DataLoader2(IterableWrapper(range(8)).map(drawing), reading_service=InProcessReadingService(2)) as other:
        other.load_state_dict(state)
        with pytest.raises(StateError, match="load it with prefetch_cnt=0, or with worker processes"):
            list(other)
