"""What draws from the global random states before a sharding point draws alike in all shards."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

from reading_services import MultiProcessingReadingService
from tests.laws.executors import make_loader, make_service, pids
from torchpipe import DataLoader, InProcessReadingService, IterDataPipe, NodeIterator
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper
from torchpipe.node.context import Context

N = 24
pytestmark = pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")


class Files(IterDataPipe[int]):
    """As one writes it for torch."""

    def __init__(self, count: int = N) -> None:
        self.names = list(range(count))

    def __iter__(self) -> Iterator[int]:
        names = list(self.names)
        random.shuffle(names)
        yield from names


class InOrder(NodeIterator[int]):
    saved = ("order", "at")
    order: list[int] = []
    at = 0

    def run(self) -> Iterator[int]:
        if not self.order:
            self.order = [int(index) for index in torch.randperm(N)]
        while self.at < N:
            self.at += 1
            yield self.order[self.at - 1]


class Drawn(IterDataPipe[int]):
    iterator = InOrder

    def iterate(self, context: Any) -> NodeIterator[int]:
        return InOrder(self, context)


class Divided(IterDataPipe[Any]):
    """Divides itself, as torch's protocol has it."""

    parts, part = 1, 0

    def apply_sharding(self, parts: int, part: int, group: Any = None) -> None:
        self.parts, self.part = parts, part

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.part, N, self.parts):
            yield index, random.random()


def shuffled(group: list[int]) -> list[int]:
    return random.sample(group, len(group))


def with_number(item: int) -> tuple[int, float]:
    return item, random.random()


def number_of(item: Any) -> int:
    return int(item[0] if isinstance(item, tuple) else item)


def twice(item: int) -> Iterator[tuple[int, float]]:
    for _ in range(2):
        yield item, random.random()


def drawn_class(item: int) -> int:
    return random.randrange(2)


BEFORE: dict[str, Callable[[], Any]] = {
    "own source": lambda: Files().sharding_filter(),
    "own NodeIterator": lambda: Drawn().sharding_filter(),
    "IterableWrapper": lambda: IterableWrapper(RandomSampler(range(N))).sharding_filter(),
    "flatmap": lambda: IterableWrapper(range(N)).batch(6).flatmap(shuffled).sharding_filter(),
    "own source, prefetch": lambda: Files().prefetch(2).sharding_filter(),
    "cycled": lambda: (
        Files(N // 2)
        .map(lambda item: item)
        .cycle(2)
        .enumerate()
        .map(lambda pair: 12 * (pair[0] // 12) + pair[1])
        .sharding_filter()
    ),
    "forked": lambda: (lambda a, b: a.zip(b).map(lambda pair: pair[0]).sharding_filter())(*Files().fork(2)),
}
BEFORE["demux by a classifier that draws"] = lambda: (lambda a, b: a.sharding_filter().concat(b.sharding_filter()))(
    *IterableWrapper(range(N)).demux(2, drawn_class, buffer_size=N)
)
BEHIND: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda graph: graph,
    "map that draws": lambda graph: graph.map(with_number),
    "shuffle": lambda graph: graph.shuffle(buffer_size=4).map(with_number),
}


def items_of(graph: Any, service: Any) -> list[Any]:
    with make_loader(graph, service) as loader:
        return list(loader)


@pytest.mark.parametrize("before", BEFORE)
def test_L1_nothing_is_lost_and_nothing_comes_twice(before: str) -> None:
    graph = BEFORE[before]().map(with_number)
    items = items_of(graph, InProcessReadingService(num_shards=3))
    assert sorted(map(number_of, items)) == list(range(N))
    drawn = [number for _, number in items]
    assert len(set(drawn)) == N, "behind the sharding point each shard draws apart"
    assert items_of(graph, InProcessReadingService(num_shards=3)) == items


@pytest.mark.parametrize("before", ["own source", "IterableWrapper", "forked"])
def test_L1_L4_workers_give_what_one_process_gives_though_one_is_killed(before: str) -> None:
    graph = BEFORE[before]().map(with_number)
    expected = items_of(graph, InProcessReadingService(num_shards=3))
    with make_loader(graph, make_service(2, 3)) as loader:
        found = []
        for item in loader:
            found.append(item)
            if len(found) == 5:
                os.kill(pids(loader)[0], signal.SIGKILL)
    assert found == expected


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("before", BEFORE)
def test_L2_a_state_goes_on_exactly_from_each_position(before: str, behind: str) -> None:
    graph = BEHIND[behind](BEFORE[before]())
    with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
        iterator, found, states = iter(loader), [], [loader.state_dict()]
        for item in iterator:
            found.append(item)
            states.append(loader.state_dict())
        later = list(loader)
    assert sorted(map(number_of, found)) == list(range(N))
    for position in range(0, len(states), 3):
        with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
            loader.load_state_dict(states[position])
            assert list(loader) == found[position:]
            assert list(loader) == later


def test_L2_within_what_a_function_makes_of_an_item_of_a_source_that_draws() -> None:
    graph = Files(8).map(with_number).sharding_filter().map(lambda pair: pair[0]).flatmap(twice)
    with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
        found, states = [], [loader.state_dict()]
        for item in loader:
            found.append(item)
            states.append(loader.state_dict())
    assert sorted(item for item, _ in found) == [number for number in range(8) for _ in range(2)]
    for position, state in enumerate(states):
        with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
            loader.load_state_dict(state)
            assert list(loader) == found[position:]


def test_L1_a_branch_that_nothing_divides_draws_alike_in_all_shards() -> None:
    graph = Files().sharding_filter().zip(Files().map(with_number).cycle())
    per_shard: dict[int, list[Any]] = {0: [], 1: []}
    for place, (_, other) in enumerate(items_of(graph, InProcessReadingService(num_shards=2))):
        per_shard[place % 2].append(other)
    assert per_shard[0] == per_shard[1]


class Augmented(Dataset[tuple[int, float]]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float]:
        if not 0 <= index < N:
            raise IndexError(index)
        return with_number(index)


def test_L1_a_node_that_divides_itself_draws_apart_as_in_torch() -> None:
    items = items_of(Divided(), InProcessReadingService(num_shards=3))
    assert sorted(number for number, _ in items) == list(range(N))
    assert len({drawn for _, drawn in items}) == N


class Rows(IterableDataset[tuple[int, float, float]]):
    """Divides itself."""

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        info = get_worker_info()
        for index in range(N) if info is None else range(info.id, N, info.num_workers):
            yield index, random.random(), float(np.random.randn())


@pytest.mark.parametrize("seeding", ["batch", "torch"])
def test_L1_an_iterable_dataset_draws_apart_in_each_worker(seeding: Any) -> None:
    with DataLoader(Rows(), None, num_workers=3, worker_seeding=seeding) as loader:
        items = list(loader)
    assert sorted(index for index, *_ in items) == list(range(N))
    assert len({drawn for _, drawn, _ in items}) == len({drawn for *_, drawn in items}) == N


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_L1_a_branch_draws_alike_however_far_the_other_one_is(shards: int) -> None:
    one, other = Files().fork(2)
    one = one.batch(2).flatmap(shuffled).sharding_filter()
    other = other.batch(3).flatmap(shuffled).sharding_filter()
    items = items_of(one.zip(other), InProcessReadingService(num_shards=shards))
    assert sorted(first for first, _ in items) == sorted(second for _, second in items) == list(range(N))


def test_L2_nodes_that_only_move_items_in_time_change_no_draws() -> None:
    def graph(prefetches: bool) -> Any:
        first = Files(8).prefetch(2) if prefetches else Files(8)
        return first.zip(Drawn().take(8).map(with_number)).sharding_filter()

    expected = items_of(graph(False), InProcessReadingService(num_shards=2))
    with make_loader(graph(False), InProcessReadingService(num_shards=2)) as loader:
        assert list(islice(loader, 3)) == expected[:3]
        state = loader.state_dict()
    with make_loader(graph(True), InProcessReadingService(num_shards=2)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected[3:]


def lazily(item: int) -> Iterator[tuple[int, float]]:
    for _ in range(2):
        yield item, float(np.random.randn())


def lazily_again(item: tuple[int, float]) -> Iterator[Any]:
    for _ in range(2):
        yield *item, float(np.random.randn())


def test_L2_lazy_flatmaps_one_behind_the_other_before_the_point() -> None:
    graph = IterableWrapper(range(5)).flatmap(lazily).flatmap(lazily_again).sharding_filter()
    with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
        found, states = [], [loader.state_dict()]
        for item in loader:
            found.append(item)
            states.append(loader.state_dict())
    for position, state in enumerate(states):
        with make_loader(graph, InProcessReadingService(num_shards=2)) as loader:
            loader.load_state_dict(state)
            assert list(loader) == found[position:]


class Position(Iterator[int]):
    """Shuffles when it is made, and saves where it stands alone."""

    def __init__(self) -> None:
        self._order = random.sample(range(N), N)
        self._at = 0

    def __next__(self) -> int:
        if self._at == N:
            raise StopIteration
        self._at += 1
        return self._order[self._at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


class Positioned(IterDataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        return Position()


@pytest.mark.parametrize("shards", [1, 2])
def test_L2_what_a_load_runs_draws_as_the_pass_did(shards: int) -> None:
    graph = Positioned().sharding_filter()
    with make_loader(graph, InProcessReadingService(num_shards=shards)) as loader:
        found, states = [], [loader.state_dict()]
        for item in loader:
            found.append(item)
            states.append(loader.state_dict())
    assert sorted(found) == list(range(N))
    for position, state in enumerate(states):
        with make_loader(graph, InProcessReadingService(num_shards=shards)) as loader:
            loader.load_state_dict(state)
            assert list(loader) == found[position:]


@pytest.mark.parametrize("shuffle", [False, True])
def test_L1_a_shard_that_makes_its_own_items_alone_draws_apart(shuffle: bool) -> None:
    graph: Any = IterableWrapper(Augmented())
    graph = (graph.shuffle() if shuffle else graph).sharding_filter()
    items = items_of(graph, InProcessReadingService(num_shards=3))
    assert sorted(number for number, _ in items) == list(range(N))
    assert len({drawn for _, drawn in items}) == N
    assert items_of(graph, MultiProcessingReadingService(2, num_shards=3)) != []


def test_L1_between_two_sharding_points_the_ranks_draw_apart_and_a_ranks_shards_alike() -> None:
    graph = (
        Files()
        .sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
        .map(with_number)
        .sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
        .map(lambda pair: (*pair, random.random()))
    )
    drawn: dict[int, Any] = {}
    for rank in range(2):
        shards = []
        for local in range(2):
            context = Context.for_graph(graph, seed=3, shard=2 * local + rank, num_shards=4, world_size=2)
            with context.iterate(graph) as iterator:
                shards.append(list(iterator))
        items = [item for shard in shards for item in shard]
        drawn[rank] = items
    assert sorted(item[0] for items in drawn.values() for item in items) == list(range(N))
    assert len({item[1] for items in drawn.values() for item in items}) == N


@pytest.mark.parametrize("count", [3, 8, 9, 17])
def test_L2_a_cache_that_is_made_further_draws_further(count: int, tmp_path: Path) -> None:
    def graph(folder: str) -> Any:
        return Drawn().map(with_number).sharding_filter().cache(str(tmp_path / folder), chunk_items=3)

    whole = items_of(graph("whole"), InProcessReadingService(num_shards=2))
    with make_loader(graph("part"), InProcessReadingService(num_shards=2)) as loader:
        assert list(islice(loader, count)) == whole[:count]
    assert items_of(graph("part"), InProcessReadingService(num_shards=2)) == whole


def test_L1_what_the_main_section_reads_is_of_no_shard() -> None:
    """With two ranks, each has one: it draws from the process's own states, whatever is divided beside it."""
    graph = IterableWrapper(range(8)).sharding_filter().zip(Files(8))
    streams = []
    for seed in (1, 1, 2):
        random.seed(seed)
        with Context.for_graph(graph, seed=3, num_shards=2, world_size=2, section=1).iterate(graph) as iterator:
            streams.append(list(iterator))
    assert streams[0] == streams[1] != streams[2]
