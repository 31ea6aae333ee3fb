"""The process around a loader: its threads, its random states, who asks for a state and when."""

from __future__ import annotations

import io
import itertools
import queue
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.datasets import Augmented, Lines, Numbers, seeded
from torchpipe import DataLoader, DataLoader2, own_random_states
from torchpipe.iter import IterableWrapper
from torchpipe.randomness import global_random


def background(loader: Any, epochs: int = 1) -> Iterator[Any]:
    """A home-made prefetcher."""
    items: queue.Queue[Any] = queue.Queue(2)
    end = object()

    def run() -> None:
        for _ in range(epochs):
            for item in loader:
                items.put(item)
        items.put(end)

    thread = threading.Thread(target=run)
    thread.start()
    while (item := items.get()) is not end:
        yield item
    thread.join()


@pytest.fixture
def not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_random, "_warned", [])


def noisy(number: int) -> Any:
    return number, random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("kind", ["map-style", "iterable", "graph"])
def test_a_thread_that_takes_batches_leaves_the_main_threads_draws_alone(kind: str, not_told: None) -> None:
    def loader_of() -> Any:
        if kind == "graph":
            return DataLoader2(IterableWrapper(range(300)).map(noisy))
        return DataLoader(Augmented(300) if kind == "map-style" else Lines(300), 2, shuffle=kind == "map-style" or None)

    with seeded(), pytest.warns(UserWarning, match="its items are not reproducible"):
        stream = background(loader_of())
        drawn: list[Any] = []
        for _ in stream:
            drawn += [(random.random(), float(np.random.rand()), float(torch.rand(()))) for _ in range(20)]
    for numbers in zip(*drawn):
        assert len(set(numbers)) > len(drawn) - 3  # 32 bits repeat by chance, now and then


def test_L1_what_draws_nothing_is_the_same_from_a_thread(not_told: None) -> None:
    def loader_of() -> DataLoader[Any]:
        return DataLoader(Numbers(40), 4, shuffle=True, generator=torch.Generator().manual_seed(1))

    loader = loader_of()
    expected = [batch.tolist() for _ in range(2) for batch in loader]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [batch.tolist() for batch in background(loader_of(), 2)] == expected


def test_L1_a_thread_that_trains_may_own_the_random_states() -> None:
    """As Ray Train's does."""

    def run() -> list[Any]:
        own_random_states()
        with seeded():
            return [float(part.sum()) for batch in DataLoader(Augmented(20), 4) for part in batch]

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(run()))
    thread.start()
    thread.join()
    assert found == run()


@pytest.mark.parametrize("workers", [0, 2])
def test_L2_a_state_that_another_thread_takes_while_an_epoch_begins(workers: int) -> None:
    """It is that of before the beginning, whatever has been drawn meanwhile."""

    class Slow(torch.utils.data.Sampler[int]):
        begins = threading.Event()
        asked = threading.Event()

        def __iter__(self) -> Iterator[int]:
            order = torch.randperm(12).tolist()
            self.begins.set()
            self.asked.wait(30)
            return iter(order)

        def __len__(self) -> int:
            return 12

    def loader_of() -> DataLoader[Any]:
        return DataLoader(Augmented(12), 2, sampler=Slow(), num_workers=workers)

    for epochs in (0, 1):
        states: list[Any] = []
        Slow.asked.set()
        with seeded(), loader_of() as loader:
            for _ in range(epochs):
                list(loader)
            Slow.begins.clear()
            Slow.asked.clear()

            def ask(loader: Any = loader, states: list[Any] = states) -> None:
                Slow.begins.wait(30)
                if workers == 0:  # the sampler is asked in next(), for which state_dict() waits
                    Slow.asked.set()
                states.append(loader.state_dict())
                Slow.asked.set()

            thread = threading.Thread(target=ask)
            thread.start()
            expected = []
            for batch in loader:
                expected.append([part.tolist() for part in batch])
                thread.join()  # it is done within this epoch
        with seeded(), loader_of() as loader:
            random.random()
            loader.load_state_dict(states[0])
            assert [[part.tolist() for part in batch] for batch in loader] == expected[states[0]["delivered"] :]


def test_a_state_saved_after_a_break_is_told_to_go_another_way() -> None:
    with seeded():
        loader = DataLoader(Numbers(20), 2, shuffle=True)
        list(itertools.islice(loader, 3))
        loader.state_dict()
        with pytest.warns(UserWarning, match=r"call loader\.set_epoch\(loader\.epoch\)"):
            expected = [batch.tolist() for batch in loader]
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Numbers(20), 2, shuffle=True)
        list(itertools.islice(loader, 3))
        loader.set_epoch(loader.epoch)
        state = loader.state_dict()
        assert [batch.tolist() for batch in loader] == expected
    with seeded():
        loader = DataLoader(Numbers(20), 2, shuffle=True)
        loader.load_state_dict(state)
        assert loader.epoch == 1
        assert [batch.tolist() for batch in loader] == expected


def test_numpys_integers_are_integers() -> None:

    loader = DataLoader(Numbers(20), 4, num_workers=np.int64(2), prefetch_factor=np.int64(2))
    loader.set_epoch(np.int64(3))
    next(iter(loader))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    file.seek(0)
    other = DataLoader(Numbers(20), 4)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert other.epoch == 3
    assert [batch.tolist() for batch in other][0] == [4, 5, 6, 7]


def test_a_program_may_still_choose_its_start_method() -> None:
    script = """
import multiprocessing
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from reading_services import MultiProcessingReadingService

list(DataLoader(range(4), num_workers=2))
graph = IterableWrapper(range(4)).sharding_filter()
with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
    list(loader)
multiprocessing.set_start_method("spawn")
"""
    subprocess.run([sys.executable, "-c", script], check=True)
