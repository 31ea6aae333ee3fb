"""A loader that two threads use at once: one reads; the other asks for figures or a state, ends the epoch, reads too.

Under ordinary Python the threads take turns every 10 us. On a free-threaded one they run at the same time, where what
the interpreter's lock had hidden comes to light: these tests are run there as well (`make test-pythons PYTHONS=3.13t`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torchpipe import DataLoader, DataLoader2, errors
from torchpipe.ahead.waiting import listed
from torchpipe.iter import IterableWrapper

LENGTH = 200


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Divided(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from range(first, LENGTH, step)


THREADS: dict[str, Any] = {"num_workers": 3, "worker_method": "thread"}
LOADERS: dict[str, Callable[[], Any]] = {
    "in process": lambda: DataLoader(Numbers()),
    "threads": lambda: DataLoader(Numbers(), **THREADS),
    "persistent threads": lambda: DataLoader(Numbers(), **THREADS, persistent_workers=True),
    "out of order": lambda: DataLoader(Numbers(), **THREADS, in_order=False),
    "device": lambda: DataLoader(Numbers(), **THREADS, device="cpu"),
    "iterable": lambda: DataLoader(Divided(), **THREADS),
    "processes": lambda: DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork"),
    "graph": lambda: DataLoader2(IterableWrapper(range(LENGTH)).prefetch(4).to_device("cpu")),
    "graph in process": lambda: DataLoader2(IterableWrapper(range(LENGTH))),
}


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Let threads take turns often, where they have to."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


@contextmanager
def beside(step: Callable[[], object]) -> Iterator[None]:
    """Meanwhile another thread calls ``step`` again and again. Raises: what that raised."""
    over, raised = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.is_set():
                step()
                time.sleep(0)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("name", LOADERS)
def test_L7_figures_asked_for_by_another_thread(name: str) -> None:
    """``stats()`` never raises, and the stream is what it is without."""
    with LOADERS[name]() as loader:
        loader.measuring = True
        with beside(loader.stats):
            found = [int(item) for item in loader]
    assert sorted(found) == list(range(LENGTH))


def test_a_queue_is_listed_while_it_changes() -> None:
    queue = deque(range(5))

    def turn() -> None:
        for _ in range(100):
            queue.append(0)
            queue.popleft()

    with beside(turn):
        assert all(len(listed(queue)) in (5, 6) for _ in range(20_000))


@pytest.mark.parametrize("name", [name for name in LOADERS if name not in ("device",)])
def test_L2_states_taken_by_another_thread_go_on_exactly(name: str) -> None:
    """Nobody is refused, and each state stands between two batches."""
    states: dict[int, Any] = {}
    with LOADERS[name]() as loader:
        stream = iter(loader)

        def save() -> None:
            state = loader.state_dict()
            states[state["delivered"]] = state

        with beside(save):
            found = [int(item) for item in stream]
    for delivered in sorted(states)[1:-1][::40]:
        with LOADERS[name]() as other:
            other.load_state_dict(states[delivered])
            rest = [int(item) for item in other]
        assert sorted(found[: LENGTH - len(rest)] + rest) == list(range(LENGTH))
        assert name == "out of order" or rest == found[delivered:]


@pytest.mark.nightly
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("ends", ["load_state_dict", "shutdown"])
def test_L7_an_epoch_ended_by_another_thread_tells_the_reader(name: str, ends: str) -> None:
    """Wherever the reader stands: it never finds an end that looks like the epoch's, and the next epoch is whole."""
    for turn in range(20):
        loader = LOADERS[name]()
        start = loader.state_dict()
        raised: list[BaseException] = []
        begun = threading.Event()

        def read(stream: Any, begun: threading.Event = begun, raised: list[BaseException] = raised) -> None:
            found = []
            try:
                for item in stream:
                    found.append(int(item))
                    begun.set()
                assert len(found) == LENGTH, f"ended early, after {len(found)}"
            except errors.IteratorInvalidated:
                pass
            except BaseException as error:
                raised.append(error)

        reader = threading.Thread(target=read, args=(iter(loader),))
        reader.start()
        assert begun.wait(60)
        time.sleep(turn * 2e-4)  # not to wait for anything, but to come at another place each time
        if ends == "shutdown":
            loader.shutdown()
        loader.load_state_dict(start)
        reader.join(60)
        assert not reader.is_alive()
        assert not raised, raised[0]
        assert sorted(int(item) for item in loader) == list(range(LENGTH))
        loader.shutdown()


def test_L7_two_readers_lose_and_repeat_nothing() -> None:
    """Whoever comes while the other is served is refused, and may ask again."""
    found: list[int] = []
    with LOADERS["graph in process"]() as loader:
        stream = iter(loader)

        def read() -> None:
            while True:
                try:
                    found.append(next(stream))
                except StopIteration:
                    return
                except RuntimeError as error:
                    assert "two threads use one" in str(error) or "while it is at work" in str(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert sorted(found) == list(range(LENGTH))


def test_L6_loaders_of_several_threads_share_nothing() -> None:
    """Threads that begin and end beside others: torch's function is whole again when all have ended."""
    before, wrong = get_worker_info.__code__, list[BaseException]()

    def run(number: int) -> None:
        try:
            for _ in range(5):
                stream = iter(DataLoader(Numbers(), batch_size=10, **THREADS))
                if number % 2:
                    assert torch.cat(list(stream)).tolist() == list(range(LENGTH))
                else:
                    next(stream)
                del stream
        except BaseException as error:
            wrong.append(error)

    with beside(lambda: get_worker_info() is None or wrong.append(AssertionError("this thread is no worker"))):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[0]
    assert get_worker_info.__code__ is before
