"""The laws for graphs whose branches meet in the main process, each with shards of its own."""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService, Restart
from tests.laws.executors import PROCESSES, make_loader, make_service, pids
from tests.laws.graphs import text_of
from tests.tries import tries
from torchpipe import IterDataPipe, NodeIterator
from torchpipe.errors import GraphError, ReplayWarning
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context


class MeetInMain(IterDataPipe[Any]):
    """Takes from its inputs in turn, until the last one ends."""

    runs_in_main = True

    def __init__(self, *inputs: Any) -> None:
        self.inputs = inputs

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return MeetInMainIterator(self, context, *self.inputs)


class MeetInMainIterator(NodeIterator[Any]):
    def __init__(self, node: MeetInMain, context: Context, *inputs: Any) -> None:
        super().__init__(node, context, *inputs)
        self._live = list(range(len(inputs)))
        self._turn = 0

    def get_state(self) -> dict[str, Any]:
        return {"live": list(self._live), "turn": self._turn}

    def set_state(self, state: dict[str, Any]) -> None:
        self._live, self._turn = list(state["live"]), state["turn"]

    def run(self) -> Iterator[Any]:
        while self._live:
            place = self._turn % len(self._live)
            try:
                item = next(self.inputs[self._live[place]])
            except StopIteration:
                del self._live[place]
                self._turn = place
                continue
            self._turn = place + 1
            yield item


def _draw(item: Any) -> Any:
    return item, random.random()


def _odd(item: Any) -> bool:
    return bool(item % 2)


def build(dispatched: bool = False) -> Any:
    """Two divided branches of different length, one of them dispatched if asked, and a table that is read once."""
    trunk = IterableWrapper(range(40)).shuffle(buffer_size=8)
    left = (trunk.sharding_round_robin_dispatch() if dispatched else trunk.sharding_filter()).map(_draw).batch(3)
    right = IterableWrapper(range(100, 125)).sharding_filter().filter(_odd).map(_draw)
    return MeetInMain(left, right, IterableWrapper("table"))


def streams(dispatched: bool, service: Any, epochs: int = 2) -> list[list[str]]:
    with make_loader(build(dispatched), service) as loader:
        return [text_of(loader) for _ in range(epochs)]


@pytest.mark.nightly
@pytest.mark.parametrize("dispatched", [False, True])
def test_L1_branches_give_the_same_stream_everywhere(dispatched: bool) -> None:
    expected = streams(dispatched, make_service(None, 3))
    assert len(expected[0]) == len(expected[1]) > 20
    assert expected[0] != expected[1]
    for context in PROCESSES:
        assert streams(dispatched, make_service(2, 3, context=context)) == expected, context


def test_L1_what_branches_share_is_the_same_in_each() -> None:
    trunk = IterableWrapper(range(30)).shuffle(buffer_size=10).sharding_filter().shuffle(buffer_size=5)
    other = (
        IterableWrapper(range(1000)).shuffle(buffer_size=3).sharding_filter()
    )  # comes before the trunk in its branch
    graph = trunk.map(str).to_device("cpu").zip(other.zip(trunk).to_device("cpu"))
    for service in (make_service(None, 2), make_service(2, 2)):
        with make_loader(graph, service) as loader:
            pairs = list(loader)
        assert len(pairs) == 30
        assert all(int(left) == right for left, (_, right) in pairs)


@given(st.booleans(), st.sampled_from([None, 0, 1, 2, 3]), st.sampled_from([None, 1, 3]), st.integers(1, 5), st.data())
@settings(max_examples=tries(25))
def test_L2_L3_branches_resume_anywhere(
    dispatched: bool, saved: int | None, loaded: int | None, every: int, data: st.DataObject
) -> None:
    first, _ = streams(dispatched, make_service(None, 3))
    count = data.draw(st.integers(0, len(first)))
    with make_loader(build(dispatched), make_service(saved, 3, every=every)) as loader:
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        state = loader.state_dict()
    with make_loader(build(dispatched), make_service(loaded, 3, every=every)) as loader:
        loader.load_state_dict(state)
        assert text_of(loader) == first[count:]


@pytest.mark.parametrize("dispatched", [False, True])
def test_L4_branches_survive_kills(dispatched: bool) -> None:
    expected = streams(dispatched, make_service(None, 3), epochs=6)
    rng = random.Random(3)
    service = make_service(
        2, 3, worker_prefetch_cnt=2, main_prefetch_cnt=0, every=2, on_worker_death=Restart(max_deaths=100)
    )
    with make_loader(build(dispatched), service) as loader:
        for epoch in expected:
            got = []
            for item in loader:
                got.append(repr(item))
                if rng.random() < 0.2:
                    os.kill(rng.choice(pids(loader)), signal.SIGKILL)
            assert got == epoch
    assert isinstance(service, MultiProcessingReadingService)
    assert service.stats().restarts > 5
    assert service.stats().processes == 0


def test_L7_two_device_stages_pull_from_one_crew() -> None:
    """Each stage has a thread, and both take from the same workers."""
    left = IterableWrapper(range(200)).sharding_filter().map(_draw)
    right = IterableWrapper(range(300, 500)).sharding_filter().map(_draw)
    graph = left.to_device("cpu").zip(right.to_device("cpu"))
    expected = streams_of(graph, make_service(None, 2))
    service = make_service(2, 2, worker_prefetch_cnt=2)
    with make_loader(graph, service) as loader:
        got = []
        for index, item in enumerate(loader):
            got.append(repr(item))
            running = pids(loader)
            if index % 40 == 20 and running:
                os.kill(running[index % len(running)], signal.SIGKILL)
        assert got == expected
        iterator = iter(loader)
        next(iterator)
        loader.shutdown()  # both threads are somewhere in the middle


def streams_of(graph: Any, service: Any) -> list[str]:
    with make_loader(graph, service) as loader:
        return text_of(loader)


def test_an_error_in_one_branch_comes_at_its_place() -> None:
    graph = MeetInMain(
        IterableWrapper([1, 2, 0, 3]).sharding_filter().map(_invert), IterableWrapper(range(10, 16)).sharding_filter()
    )
    for service in (make_service(None, 1), make_service(1, 1)):
        with make_loader(graph, service) as loader:
            iterator = iter(loader)
            assert [next(iterator) for _ in range(4)] == [1.0, 10, 0.5, 11]
            with pytest.raises(ZeroDivisionError) as caught:
                next(iterator)
            assert any("Mapper(_invert) for item 2 of shard 0 of 1" in note for note in caught.value.__notes__)


def _invert(item: int) -> float:
    return 1 / item


def test_explain_shows_every_merge() -> None:
    text = make_loader(build(), make_service(2, 3)).explain()
    assert text.count("one item from each shard in turn") == 2
    assert "merge of 5" in text
    assert "IterableWrapper" in text.partition("main section")[2]  # the table


class Own(IterDataPipe[Any]):
    """A node of a user's: it opens its input when it is asked for the first item."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


@pytest.mark.parametrize("workers", [None, 2])
def test_L7_what_the_shards_deliver_is_not_read_again(workers: int | None) -> None:
    divided, found = IterableWrapper(range(8)).sharding_filter().to_device("cpu"), []
    loader = make_loader(divided.cycle(2), make_service(workers, 2))
    with loader, pytest.raises(GraphError, match="come once an epoch"):
        found.extend(loader)
    assert found == list(range(8))
    with make_loader(divided.cycle(1), make_service(workers, 2)) as loader:
        assert list(loader) == list(range(8))


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("dispatched", [False, True])
def test_L2_a_branch_that_a_users_node_reads_late(workers: int | None, dispatched: bool) -> None:
    def graph() -> Any:
        source = IterableWrapper(range(8))
        divided = source.sharding_round_robin_dispatch() if dispatched else source.sharding_filter()
        return IterableWrapper(range(3)).sharding_filter().concat(Own(divided.map(_draw).to_device("cpu")))

    with make_loader(graph(), make_service(None, 2)) as loader:
        expected = [text_of(loader) for _ in range(2)]
    assert len(expected[0]) == 11
    for stop in range(0, 12, 1 if workers is None else 5):
        with make_loader(graph(), make_service(workers, 2, every=1)) as loader:
            items = iter(loader)
            found = []
            for place in range(min(stop, 11)):
                found.append(repr(next(items)))
                if place == 1 and workers:
                    os.kill(pids(loader)[0], signal.SIGKILL)
            state = loader.state_dict()
        with warnings.catch_warnings(), make_loader(graph(), make_service(None, 2)) as loader:
            warnings.simplefilter("ignore", ReplayWarning)
            loader.load_state_dict(state)
            assert stop == 11 or [found + text_of(loader), text_of(loader)] == expected
