"""L5, bounded: neither memory, nor state, nor the cost of resuming grows with the position."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.laws.executors import make_loader, make_service, oracle
from torchpipe import IterDataPipe
from torchpipe.errors import ReplayWarning
from torchpipe.iter import IterableWrapper


class Log:
    """Appends a byte to a file for every item it sees, in whatever process that happens."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __call__(self, item: Any) -> Any:
        with open(self._path, "ab") as file:
            file.write(b".")
        return item


def shuffled(log: Callable[[Any], Any]) -> Any:
    return (
        IterableWrapper(range(10_000, 15_000))
        .shuffle(buffer_size=100)
        .sharding_filter()
        .map(log)
        .shuffle(buffer_size=50)
        .map(_large)  # a message each, so that the window counts items
    )


@pytest.mark.parametrize("workers", [None, 2])
def test_L5_resume_and_state_do_not_grow_with_the_position(workers: int | None, tmp_path: Path) -> None:
    every, window = 10, 4
    sizes, costs = [], []
    for count in (100, 1000, 4000):
        graph = shuffled(Log(tmp_path / "first"))
        with make_loader(graph, make_service(workers, 2, every=every, worker_prefetch_cnt=window)) as loader:
            iterator = iter(loader)
            for _ in range(count):
                next(iterator)
            state = loader.state_dict()
        sizes.append(len(state["payload"]))
        log = tmp_path / f"resumed-{count}"
        graph = shuffled(Log(log))
        service = make_service(workers, 2, every=every, worker_prefetch_cnt=window, main_prefetch_cnt=0)
        with make_loader(graph, service) as loader:
            loader.load_state_dict(state)
            next(iter(loader))
        costs.append(log.stat().st_size)
    assert max(sizes) < 1.2 * min(sizes)
    # For each shard: what one interval dropped, and what may run ahead of the first item delivered.
    assert max(costs) <= 2 * (every + window + 1), costs


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_L5_workers_run_ahead_no_further_than_asked(context: str, tmp_path: Path) -> None:
    log, window = tmp_path / "log", 3
    log.touch()
    graph = IterableWrapper(range(200)).sharding_filter().map(Log(log)).map(_large)  # a message each
    service = make_service(2, 2, context=context, worker_prefetch_cnt=window)
    with make_loader(graph, service) as loader:
        for delivered, _ in enumerate(loader, start=1):
            # Each shard: the chunk in hand counts as outstanding until the next one is asked for; the second chunk is
            # begun before the size of items is known.
            assert log.stat().st_size <= delivered + 2 * (window + 1)


def test_L5_bytes_bound_how_far_workers_run_ahead(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    graph = IterableWrapper(range(60)).sharding_filter().map(Log(log)).map(_large)
    service = make_service(2, 2, worker_prefetch_cnt=50, worker_prefetch_bytes=4 * 200_000)
    with make_loader(graph, service) as loader:
        for delivered, _ in enumerate(loader, start=1):
            assert log.stat().st_size <= delivered + 2 * 5


def test_L5_small_items_run_ahead_by_messages(tmp_path: Path) -> None:
    """Many small items go into one message: as many as come within 2 ms, or 4,096."""
    log = tmp_path / "log"
    log.touch()
    graph = IterableWrapper(range(200_000)).sharding_filter().map(Log(log))
    with make_loader(graph, make_service(2, 2, worker_prefetch_cnt=1)) as loader:
        iterator = iter(loader)
        for delivered in range(1, 200):
            next(iterator)
            assert log.stat().st_size <= delivered + 2 * 2 * 4096


def _large(item: int) -> bytes:
    return bytes(200_000)


class Plain(IterDataPipe[int]):
    """A node as people write them: a generator, no state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


def random_pair(item: int) -> tuple[int, float]:
    import random

    return item, random.random()


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("with_random", [False, True])
def test_L5_replay_is_announced_with_its_length(workers: int | None, with_random: bool) -> None:
    graph = Plain(300).sharding_filter()
    if with_random:  # then the whole shard is replayed: nothing else is exact
        graph = graph.map(random_pair)
    first = oracle(graph, 2, epochs=1)[0]
    with make_loader(graph, make_service(workers, 2, every=5)) as loader:
        iterator = iter(loader)
        for _ in range(100):
            next(iterator)
        state = loader.state_dict()
    with make_loader(graph, make_service(workers, 2, every=5)) as loader:
        loader.load_state_dict(state)
        with pytest.warns(ReplayWarning, match=r"Plain.*replaying its first (199|200) items") as caught:
            stream = iter(loader)  # each of 2 shards reads all: 99 and 100 items, to have 50
            line = sys._getframe().f_lineno - 1  # of the call of iter()
            assert [repr(item) for item in stream] == first[100:]
    (warning,) = [item for item in caught if item.category is ReplayWarning]
    assert (warning.filename, warning.lineno) == (__file__, line)


def open_file(number: int) -> Any:
    return number, open(os.devnull, "rb")


def close_file(item: Any) -> int:
    number, file = item
    file.close()
    return int(number)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")  # the oracle gives some too
@pytest.mark.parametrize("workers", [None, 2])
def test_L5_a_buffer_that_cannot_be_saved_is_announced(workers: int | None) -> None:
    graph = IterableWrapper(range(60)).sharding_filter().map(open_file).shuffle(buffer_size=4).map(close_file)
    first = oracle(graph, 2, epochs=1)[0]
    with (
        make_loader(graph, make_service(workers, 2, every=5)) as loader,
        pytest.warns(ReplayWarning, match="no snapshot can be taken of shard 0 after item 5.*before files are opened"),
    ):
        iterator = iter(loader)
        for _ in range(40):
            next(iterator)
        state = loader.state_dict()
    with make_loader(graph, make_service(workers, 2, every=5)) as loader:
        loader.load_state_dict(state)
        assert [repr(item) for item in loader] == first[40:]
