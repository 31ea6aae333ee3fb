"""``torchpipe.profile``: what limits a graph, node by node, and what more workers, or free data, would bring."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchpipe import DataLoader2, IterDataPipe, profile
from torchpipe.iter import IterableWrapper
from torchpipe.observe.profiles import Profile
from torchpipe.observe.profiling import _AsWorkersDo

SLOW_S = 0.03
SECONDS = 0.3


def slow(item: Any) -> Any:
    time.sleep(SLOW_S)
    return item


def plus_one(item: int) -> int:
    return item + 1


def numbers(length: int = 100_000) -> Any:
    return IterableWrapper(range(length))


@pytest.fixture(scope="module")
def found() -> Profile:
    graph = numbers().shuffle(buffer_size=10).sharding_filter().map(slow).map(plus_one).batch(2)
    return profile(graph, seconds=SECONDS, workers=(1, 4), step=slow)


def test_the_slowest_node_is_named(found: Profile) -> None:
    slowest = next(node for node in found.nodes if node.number == found.slowest)
    assert slowest.name == "Mapper(slow)"
    assert (slowest.share or 0) > 0.5
    assert "`Mapper(slow)`" in found.sentence
    assert str(found).startswith(found.sentence)
    assert slowest.error == ""


def test_each_prefix_and_each_node_alone(found: Profile) -> None:
    alone = {node.name: node.alone_per_s or 0 for node in found.nodes}
    prefix = {node.name: node.prefix_per_s or 0 for node in found.nodes}
    assert len(alone) == 6
    assert all(alone.values())
    assert all(prefix.values())
    # Quick nodes are held up by the slow one before them, and not alone
    assert alone["Mapper(plus_one)"] > 3 * prefix["Mapper(plus_one)"]
    assert 0.2 < alone["Mapper(slow)"] / prefix["Mapper(slow)"] < 5  # level, but for a busy machine's pauses
    assert prefix["Shuffler"] > 3 * prefix["Mapper(slow)"]


def test_what_workers_and_free_data_would_bring(found: Profile) -> None:
    assert [item.workers for item in found.predictions] == [1, 4]
    one, four = (item.items_per_s for item in found.predictions)
    loop = found.loop_per_s or 0
    # A batch takes two sleeps to make and one in the loop; on a busy machine either may take longer
    assert one <= 1 / (2 * SLOW_S)
    assert loop <= 1 / SLOW_S
    assert one == pytest.approx(min(found.items_per_s, loop))
    assert four == pytest.approx(min(4 * found.items_per_s, loop))
    assert [item.wait_share for item in found.predictions] == pytest.approx([1 - one / loop, 1 - four / loop], abs=1e-6)
    assert found.keeps_up is not None
    assert 0.9 * loop / found.items_per_s <= found.keeps_up < loop / found.items_per_s + 1
    slowest = next(node for node in found.nodes if node.number == found.slowest)
    assert [rate.workers for rate in slowest.rates] == [1, 4]
    assert slowest.rates[1].items_per_s == pytest.approx(4 * slowest.rates[0].items_per_s)


def test_it_travels_as_json(found: Profile) -> None:
    assert Profile.from_json(found.to_json()) == found


class LateBegin(IterDataPipe[int]):
    """As a buffer that is filled, or a file that is opened, at the beginning of a pass."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(10 * SLOW_S)
        yield from range(1000)


def test_what_begins_a_pass_is_no_part_of_an_item() -> None:
    found = profile(LateBegin().map(slow), seconds=SECONDS, workers=(1,))
    assert found.nodes[(found.slowest or 0) - 1].name == "Mapper(slow)"


class Sorted(IterDataPipe[int]):
    """Reads all of its input before its first item."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        yield from sorted(self.source)


def test_what_reads_all_of_its_input_comes_to_an_end() -> None:
    found = profile(Sorted(numbers(1000)), seconds=0.02)
    assert found.nodes[1].alone_per_s


def test_what_uses_up_its_input_says_why_it_cannot_run_alone() -> None:
    def read(file: io.StringIO) -> str:
        with file:
            return file.read()

    # Five items are enough: the time must only be longer than this process may be kept waiting for a core.
    found = profile(numbers(4).map(str).map(io.StringIO).map(read), seconds=0.2)
    assert found.nodes[3].alone_per_s is None
    assert "closed file" in found.nodes[3].error
    assert found.nodes[3].prefix_per_s
    assert found.nodes[2].error == ""
    assert "closed file" in str(found)


def test_nothing_of_the_users_is_changed() -> None:
    loader = DataLoader2(numbers(10).shuffle())
    loader.seed(3)
    stream = iter(loader)
    next(stream)
    before = loader.state_dict(), random.getstate(), torch.get_rng_state()
    profile(loader, seconds=0.01)
    assert loader.state_dict() == before[0]
    assert random.getstate() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert len(list(stream)) == 9


def test_a_graph_without_items() -> None:
    found = profile(IterableWrapper([]).map(plus_one), seconds=0.01, step=slow)
    assert found.sentence == "The graph has no items."
    assert found.items_per_s is found.loop_per_s is found.slowest is None


def test_what_the_graph_raises_is_raised() -> None:
    with pytest.raises(TypeError, match="can only concatenate"):
        profile(IterableWrapper("abc").map(plus_one), seconds=0.01)


def test_quick_items_are_made_several_at_a_time_as_in_a_worker() -> None:
    made = []
    with DataLoader2(numbers().map(lambda item: made.append(item) or item), reading_service=_AsWorkersDo()) as loader:
        assert any(len(made) > delivered for delivered, _ in enumerate(loader, start=1))
