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
from torch.utils.data import Dataset, RandomSampler

from reading_services import MultiProcessingReadingService
from tests.laws.executors import make_loader, make_service, pids
from torchpipe import Context, InProcessReadingService, IterDataPipe, NodeIterator
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper, Sampler

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


class Divided(IterDataPipe[int]):
    """Divides itself, as torch's protocol has it."""

    parts, part = 1, 0

    def apply_sharding(self, parts: int, part: int, group: Any = None) -> None:
        self.parts, self.part = parts, part

    def __iter__(self) -> Iterator[int]:
        names = np.random.permutation(N).tolist()
        yield from names[self.part :: self.parts]


def shuffled(group: list[int]) -> list[int]:
    return random.sample(group, len(group))


def with_number(item: int) -> tuple[int, float]:
    return item, random.random()


def number_of(item: Any) -> int:
    return int(item[0] if isinstance(item, tuple) else item)


def twice(item: int) -> Iterator[tuple[int, float]]:
    for _ in range(2):
        yield item, random.random()


BEFORE: dict[str, Callable[[], Any]] = {
    "own source": lambda: Files().sharding_filter(),
    "own NodeIterator": lambda: Drawn().sharding_filter(),
    "divides itself": Divided,
    "Sampler": lambda: Sampler(IterableWrapper(range(N)), RandomSampler).sharding_filter(),
    "IterableWrapper": lambda: IterableWrapper(RandomSampler(range(N))).sharding_filter(),
    "flatmap": lambda: IterableWrapper(range(N)).batch(6).flatmap(shuffled).sharding_filter(),
    "map_batches": lambda: IterableWrapper(range(N)).map_batches(shuffled, batch_size=5).sharding_filter(),
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


@pytest.mark.parametrize("before", ["own source", "Sampler", "forked"])
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
            context = Context.for_graph(graph, seed=3, shard=2 * local + rank, num_shards=4, rank=rank, world_size=2)
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
