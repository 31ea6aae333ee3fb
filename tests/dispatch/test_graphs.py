"""Graphs with a dispatcher in them: where it is cut, what runs once, how errors and ends come through."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.laws.executors import PROCESSES, make_loader, make_service, oracle, pids
from tests.laws.kills import Kill, run_with_kills
from torchpipe import IterDataPipe
from torchpipe.errors import GraphError
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper
from torchpipe.testing import check_node

MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


class CountsReads(IterDataPipe[int]):
    """Appends a byte to a file for every item it yields, in whatever process that happens."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = str(path), length

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            with open(self.path, "ab") as file:
                file.write(b".")
            yield number


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_the_dispatched_part_runs_once(workers: int | None, tmp_path: Path) -> None:
    graph = CountsReads(tmp_path / "reads", 40).sharding_round_robin_dispatch(MULTIPROCESSING)
    with make_loader(graph, make_service(workers, 3)) as loader:
        assert list(loader) == list(range(40))
    assert (tmp_path / "reads").stat().st_size == 40


@pytest.mark.parametrize("context", PROCESSES)
def test_under_every_start_method(context: str) -> None:
    graph = IterableWrapper(range(50)).shuffle(buffer_size=9).sharding_round_robin_dispatch().batch(3)
    with make_loader(graph, make_service(2, 2, context=context)) as loader:
        assert [repr(item) for item in loader] == oracle(graph, 2, 1)[0]


def test_several_dispatchers_join_where_their_branches_meet() -> None:
    left = IterableWrapper(range(20)).sharding_round_robin_dispatch()
    right = IterableWrapper(range(100, 120)).sharding_round_robin_dispatch()
    graph = left.zip(right).map(sum).batch(2)
    with make_loader(graph, make_service(2, 2)) as loader:
        sections = loader.explain()
        assert sections.index("Zipper") < sections.index("shard section") < sections.index("Mapper(sum)")
        assert [repr(item) for item in loader] == oracle(graph, 2, 1)[0]


def odd_ones(number: int) -> bool:
    return number % 2 == 1


@pytest.mark.parametrize("workers", [None, 2])
def test_shards_that_filter_unevenly_do_not_block(workers: int | None) -> None:
    """Shard 0 of 2 gets the even numbers and keeps none: it takes all it is dealt before it delivers anything."""
    graph = IterableWrapper(range(2001)).sharding_round_robin_dispatch().filter(odd_ones)
    with make_loader(graph, make_service(workers, 2)) as loader:
        assert list(loader) == list(range(1, 2001, 2))


def test_a_buffer_that_grows_is_counted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    graph = IterableWrapper(range(4001)).sharding_round_robin_dispatch().filter(odd_ones)
    service = MultiProcessingReadingService(2, "fork", worker_prefetch_cnt=1, num_shards=2)
    with make_loader(graph, service) as loader, caplog.at_level("WARNING", "torchpipe"):
        assert len(list(loader)) == 2000
        assert service.stats().longest_dispatch_buffer >= 1000
    assert service.stats().longest_dispatch_buffer >= 1000  # kept over a shutdown
    assert "dispatched items wait for one shard: the others drop more of theirs" in caplog.text


def test_shards_that_keep_pace_have_nothing_to_report() -> None:
    graph = IterableWrapper(range(400)).sharding_round_robin_dispatch()
    service = MultiProcessingReadingService(2, "fork", num_shards=2)
    with make_loader(graph, service) as loader:
        assert len(list(loader)) == 400
        assert service.stats().longest_dispatch_buffer == 0


def fail_at_nine(number: int) -> int:
    return number // (number - 9) * 0 + number


@pytest.mark.parametrize("workers", [None, 2])
def test_an_error_in_the_dispatched_part_arrives_in_its_place(workers: int | None) -> None:
    graph = IterableWrapper(range(30)).map(fail_at_nine).sharding_round_robin_dispatch()
    got = []
    with make_loader(graph, make_service(workers, 2)) as loader:
        with pytest.raises(ZeroDivisionError) as raised:
            for item in loader:
                got.append(item)
        assert got == list(range(9))
        assert any("Mapper(fail_at_nine)" in note for note in raised.value.__notes__)


def test_an_infinite_source() -> None:
    graph = IterableWrapper(range(3)).cycle().sharding_round_robin_dispatch().enumerate()
    with make_loader(graph, make_service(2, 2)) as loader:
        assert [item for item, _ in zip(loader, range(8))] == [(number // 2, number % 3) for number in range(8)]


def test_what_cannot_be_is_refused() -> None:
    twice = IterableWrapper(range(3)).sharding_filter().sharding_round_robin_dispatch()
    with pytest.raises(GraphError, match="two sharding points on one path"):
        make_loader(twice, make_service(None, 2))
    again = IterableWrapper(range(3)).sharding_round_robin_dispatch().cycle(2)
    with (
        make_loader(again, make_service(None, 2)) as loader,
        pytest.raises(GraphError, match="put cycle.. or cache.. before"),
    ):
        list(loader)


def test_the_node_alone_keeps_one_part_like_sharding_filter() -> None:
    check_node(lambda: IterableWrapper(range(11)).sharding_round_robin_dispatch())
    assert list(IterableWrapper(range(5)).sharding_round_robin_dispatch()) == [0, 1, 2, 3, 4]


def test_length() -> None:
    graph = IterableWrapper(range(11)).sharding_round_robin_dispatch().batch(2)
    with make_loader(graph, make_service(None, 3)) as loader:
        assert len(loader) == len(list(loader)) == 6


def slowly(number: int) -> int:
    time.sleep(0.005)  # so that workers wait for items
    return number


class Swallows(IterDataPipe[int]):
    """Takes whatever is raised through it for the end of its input, or for an error of its own."""

    def __init__(self, datapipe: IterDataPipe[int], says: type[Exception] | None) -> None:
        self.datapipe, self.says = datapipe, says

    def __iter__(self) -> Iterator[int]:
        source = iter(self.datapipe)
        while True:
            try:
                item = next(source)
            except StopIteration:
                return
            except:  # noqa: E722
                if self.says is not None:
                    raise self.says("there is no more") from None
                return
            yield item


@pytest.mark.nightly
@pytest.mark.parametrize("says", [None, ValueError])
def test_L4_a_bare_except_behind_the_dispatcher(says: type[Exception] | None) -> None:
    """What ends a worker's wait for an item, so that it begins anew, goes through that node."""
    graph = Swallows(IterableWrapper(range(40)).map(slowly).sharding_round_robin_dispatch(), says)
    expected = oracle(graph, 2, 2)
    for item in range(0, 40, 8):
        with make_loader(graph, make_service(2, 2)) as loader:
            assert run_with_kills(loader, 2, [Kill(0, item, 0, "SIGKILL")]) == expected


@pytest.mark.nightly
def test_L2_a_bare_except_behind_the_dispatcher_while_items_are_passed_over() -> None:
    graph = Swallows(IterableWrapper(range(40)).map(slowly).sharding_round_robin_dispatch(), None)
    never = make_loader(graph, make_service(2, 2, every=1 << 40))
    stream = iter(never)
    for _ in range(30):
        next(stream)
    state = never.state_dict()
    never.shutdown()
    for _ in range(3):
        with make_loader(graph, make_service(2, 2)) as loader:
            loader.load_state_dict(state)
            stream = iter(loader)
            os.kill(pids(loader)[0], signal.SIGKILL)
            assert list(stream) == list(range(30, 40))


class Twice:
    """An iterator with state, of which a position is kept before each item."""

    def __init__(self, item: Any) -> None:
        self.item, self.left = item, 2

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left, self.item

    def state_dict(self) -> dict[str, int]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.left = state["left"]


def branches_that_stand_apart() -> Any:
    """Their states, each from before the item that it is at, are of several moments of what they share."""
    first, second = IterableWrapper(range(16)).sharding_round_robin_dispatch(MULTIPROCESSING).demux(2, lambda n: n // 8)
    return first.flatmap(Twice).mux_longest(second.flatmap(Twice))


@pytest.mark.parametrize("workers", [None, 2])
def test_L2_branches_of_what_is_dispatched_whose_states_are_of_several_moments(workers: int | None) -> None:
    (expected,) = oracle(branches_that_stand_apart(), 2, epochs=1)
    for stop in range(0, len(expected), 3):
        with make_loader(branches_that_stand_apart(), make_service(workers, 2, every=1)) as loader:
            items = iter(loader)
            found = [repr(next(items)) for _ in range(stop)]
            state = loader.state_dict()
        with make_loader(branches_that_stand_apart(), make_service(None, 2, every=1)) as loader:
            loader.load_state_dict(state)
            assert found + [repr(item) for item in loader] == expected
