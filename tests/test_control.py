"""``limit``, ``resume`` and ``paused`` on a loader's iterator, in process and over workers."""

from __future__ import annotations

import itertools

import pytest

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import GraphSpec
from torchpipe.errors import IteratorInvalidated
from torchpipe.iter import IterableWrapper

RICH: GraphSpec = (37, (("shuffle", 4),), (("global_random", 1), ("filter", 3), ("shuffle", 3), ("batch", 2)), False)
EXECUTORS = pytest.mark.parametrize("workers", [None, 2])


@EXECUTORS
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_rounds_of_a_limit_make_up_the_epoch(workers: int | None, size: int) -> None:
    expected = oracle(RICH, 2)
    with make_loader(RICH, make_service(workers, 2)) as loader:
        for epoch in expected:
            iterator = iter(loader)
            iterator.limit(size)
            got = []
            while not iterator.finished:
                part = [repr(item) for item in iterator]
                assert len(part) == size or iterator.finished
                assert iterator.paused != iterator.finished
                assert list(iterator) == []  # still paused, or over
                iterator.resume()
                got += part
            assert got == epoch


@EXECUTORS
def test_a_state_of_a_pause_is_exact_and_the_pause_goes_on(workers: int | None) -> None:
    (expected,) = oracle(RICH, 2, epochs=1)
    with make_loader(RICH, make_service(workers, 2)) as loader:
        iterator = iter(loader)
        iterator.limit(4)
        assert [repr(item) for item in iterator] == expected[:4]
        running = pids(loader) if workers else []
        state = loader.state_dict()
        assert state["delivered"] == 4
        assert loader.state_dict() == state
        assert loader.epoch == 0
        iterator.limit(None)
        assert list(iterator) == []  # no more pauses, but this one has to be ended
        iterator.resume()
        assert [repr(item) for item in iterator] == expected[4:]
        assert (pids(loader) if workers else []) == running  # the processes stayed
        loader.load_state_dict(state)
        assert [repr(item) for item in loader] == expected[4:]


def test_a_limit_counts_from_its_call() -> None:
    with make_loader(IterableWrapper(range(20)), make_service(None, 1)) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        iterator.limit(5)
        assert [next(iterator) for _ in range(3)] == [1, 2, 3]
        iterator.limit(2)
        assert list(iterator) == [4, 5]
        iterator.limit(3)  # of the next round
        assert list(iterator) == []
        iterator.resume()
        assert list(iterator) == [6, 7, 8]


def test_pause_and_resume_without_a_limit() -> None:
    with make_loader(IterableWrapper(range(5)), make_service(None, 1)) as loader:
        iterator = iter(loader)
        iterator.resume()  # harmless
        assert next(iterator) == 0
        iterator.pause()
        assert list(iterator) == []
        iterator.resume()
        iterator.resume()
        assert list(iterator) == [1, 2, 3, 4]
        iterator.resume()
        assert list(iterator) == []
        assert iterator.finished


@EXECUTORS
def test_an_endless_graph(workers: int | None) -> None:
    graph = IterableWrapper(range(10)).sharding_filter().cycle()
    with make_loader(graph, make_service(workers, 2)) as loader:
        iterator = iter(loader)
        iterator.limit(25)
        rounds = []
        for _ in range(3):
            rounds.append(list(iterator))
            iterator.resume()
        assert list(itertools.chain(*rounds)) == [number % 10 for number in range(75)]


@EXECUTORS
def test_a_second_iter_ends_a_pause(workers: int | None) -> None:
    expected = oracle(RICH, 2)
    with make_loader(RICH, make_service(workers, 2)) as loader:
        paused = iter(loader)
        paused.limit(3)
        assert len(list(paused)) == 3
        assert [repr(item) for item in loader] == expected[1]  # without a limit
        for _ in range(2):
            with pytest.raises(IteratorInvalidated, match="newer iter"):
                next(paused)
            paused.resume()


def test_a_limit_that_is_met_at_the_end() -> None:
    with make_loader(IterableWrapper(range(6)), make_service(None, 1)) as loader:
        iterator = iter(loader)
        iterator.limit(6)
        assert len(list(iterator)) == 6
        assert iterator.paused
        assert not iterator.finished
        state = loader.state_dict()
        iterator.resume()
        assert list(iterator) == []
        assert iterator.finished
        loader.load_state_dict(state)
        assert (loader.epoch, list(loader)) == (0, [])  # nothing was left of it
        assert (loader.epoch, len(list(loader))) == (1, 6)
