"""``SequentialReadingService``, and what ranks change in a stream: without any talk between ranks."""

from __future__ import annotations

import random
from typing import Any

import pytest

from reading_services import (
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PreparingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from tests.services.ranks import FixedRank
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, StateMismatchError
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper
from torchpipe.testing import check_reading_service
from torchpipe.testing.services import sample_graph

DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING


def _rank(rank: int, world_size: int, num_shards: int, workers: int | None = None) -> ReadingServiceInterface:
    executing: ReadingServiceInterface = InProcessReadingService(num_shards=num_shards)
    if workers is not None:
        executing = MultiProcessingReadingService(workers, num_shards=num_shards)
    return SequentialReadingService(FixedRank(rank, world_size), executing)


def _run(graph: Any, service: ReadingServiceInterface, epochs: int = 2) -> list[Any]:
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(5)
        return [repr(item) for _ in range(epochs) for item in loader]


def _noisy(number: int) -> tuple[int, float]:
    return number, random.random()


def _random_graph() -> Any:
    return IterableWrapper(range(24)).shuffle().sharding_filter().map(_noisy).shuffle(buffer_size=3)


def test_a_sequence_keeps_the_laws() -> None:
    check_reading_service(lambda num_shards: SequentialReadingService(InProcessReadingService(num_shards=num_shards)))
    check_reading_service(
        lambda num_shards: SequentialReadingService(
            PreparingReadingService(), MultiProcessingReadingService(2, num_shards=num_shards)
        ),
        thorough=False,
    )


def test_what_the_executing_service_can_be_asked_the_sequence_can() -> None:
    sequence: Any = SequentialReadingService(PreparingReadingService(), MultiProcessingReadingService(2))
    with DataLoader2(IterableWrapper(range(4)).sharding_filter(), reading_service=sequence) as loader:
        next(iter(loader))
        assert len(sequence.worker_pids()) == len(loader.reading_service.worker_pids()) == 2  # type: ignore[attr-defined]
    alone = SequentialReadingService(InProcessReadingService())
    for name in ("worker_pids", "nodes", "_private"):
        with pytest.raises(AttributeError, match=f"'SequentialReadingService' has no attribute '{name}'"):
            getattr(alone, name)


def test_what_prepares_runs_alone_in_process() -> None:
    assert _run(_random_graph(), PreparingReadingService()) == _run(_random_graph(), InProcessReadingService())


def test_two_services_that_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="FixedRank and FixedRank each divide"):
        DataLoader2(_random_graph(), reading_service=SequentialReadingService(FixedRank(0, 2), FixedRank(0, 2)))


def test_services_have_their_say_in_order() -> None:
    calls = []

    class Noting(PreparingReadingService):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def prepare(self, datapipe: Any) -> Any:
            calls.append(f"prepare {self.name}")
            return datapipe

        def prepare_iteration(self, start: Any) -> Any:
            calls.append(f"start {self.name}")
            return start

        def run_iteration(self, start: Any, begin: Any) -> Any:
            calls.append(f"run {self.name}")
            return begin(start)

        def release(self) -> None:
            calls.append(f"release {self.name}")

        def describe(self) -> str:
            return f"noted by {self.name}"

    service = SequentialReadingService(Noting("a"), Noting("b"), InProcessReadingService())
    with DataLoader2(IterableWrapper(range(3)), reading_service=service) as loader:
        assert list(loader) == [0, 1, 2]
        assert loader.explain().startswith("noted by a\nnoted by b\nshard section")
    expected = "prepare a, prepare b, start a, start b, run a, run b, release b, release a"
    assert calls == expected.split(", ")


# -- ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "num_shards"), [(2, 1), (2, 2), (3, 2)])
def test_a_rank_has_every_nth_item_of_the_stream_of_all_shards(world_size: int, num_shards: int) -> None:
    oracle = _run(_random_graph(), InProcessReadingService(num_shards=world_size * num_shards))
    for rank in range(world_size):
        assert _run(_random_graph(), _rank(rank, world_size, num_shards)) == oracle[rank::world_size]


def test_a_rank_with_workers_has_the_same_stream() -> None:
    expected = _run(sample_graph(), _rank(1, 2, 2))
    assert _run(sample_graph(), _rank(1, 2, 2, workers=2)) == expected
    assert _run(sample_graph(), _rank(1, 2, 2, workers=1)) == expected


def test_functions_draw_differently_on_every_rank() -> None:
    graph = IterableWrapper(range(4)).sharding_filter().map(lambda _: random.random())
    assert len({item for rank in range(2) for item in _run(graph, _rank(rank, 2, 1))}) == 8


def _staged(shuffle: bool = True) -> Any:
    graph: Any = IterableWrapper(range(24))
    graph = graph.sharding_filter(DISTRIBUTED)
    graph = graph.shuffle(buffer_size=5) if shuffle else graph
    return graph.sharding_filter(MULTIPROCESSING)


def _dispatched() -> Any:
    return IterableWrapper(range(24)).sharding_filter(DISTRIBUTED).shuffle().sharding_round_robin_dispatch()


def _swapped() -> Any:
    return IterableWrapper(range(24)).sharding_filter(MULTIPROCESSING).shuffle().sharding_filter(DISTRIBUTED)


@pytest.mark.parametrize("graph", [_staged, _dispatched, _swapped])
@pytest.mark.parametrize("workers", [None, 2])
def test_a_stream_can_be_divided_among_ranks_first_and_then_among_shards(graph: Any, workers: int | None) -> None:
    streams = [_run(graph(), _rank(rank, 2, 2, workers), epochs=1) for rank in range(2)]
    assert all(len(stream) == 12 for stream in streams)
    assert {int(item) for stream in streams for item in stream} == set(range(24))


def test_both_ways_of_dividing_give_one_stream() -> None:
    for rank in range(2):
        both = IterableWrapper(range(24)).sharding_filter()
        assert _run(_staged(shuffle=False), _rank(rank, 2, 2)) == _run(both, _rank(rank, 2, 2))


@pytest.mark.parametrize("group", [DISTRIBUTED, MULTIPROCESSING])
def test_a_graph_that_is_not_divided_where_it_has_to_be_is_refused(group: Any) -> None:
    graph = IterableWrapper(range(8)).sharding_filter(group)
    what = "shards" if group is DISTRIBUTED else "ranks"
    with pytest.raises(GraphError, match=f"no sharding point for {what}, so each of 2 {what} would yield"):
        list(DataLoader2(graph, reading_service=_rank(0, 2, 2)))
    assert len(_run(graph, _rank(0, 2, 1) if group is DISTRIBUTED else _rank(0, 1, 2), epochs=1)) in (4, 8)


@pytest.mark.parametrize(
    ("first", "second"), [(None, None), (None, DISTRIBUTED), (MULTIPROCESSING, None), (DISTRIBUTED, DISTRIBUTED)]
)
def test_dividing_twice_is_refused(first: Any, second: Any) -> None:
    graph = IterableWrapper(range(8)).sharding_filter(first).sharding_filter(second)
    with pytest.raises(GraphError, match="two sharding points on one path"):
        DataLoader2(graph)


def test_a_state_belongs_to_its_rank() -> None:
    with DataLoader2(_random_graph(), reading_service=_rank(1, 2, 2)) as loader:
        stream = iter(loader)
        next(stream)
        state = loader.state_dict()
        rest = list(stream)
    assert (state["rank"], state["world_size"]) == (1, 2)
    for service in (_rank(0, 2, 2), _rank(1, 3, 2), InProcessReadingService(num_shards=2)):
        loader = DataLoader2(_random_graph(), reading_service=service)
        with pytest.raises(StateMismatchError, match=r"rank 1 of 2, this loader is rank \d of \d"):
            loader.load_state_dict(state)
    with DataLoader2(_random_graph(), reading_service=_rank(1, 2, 2, workers=2)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_the_seed_of_an_epoch_can_come_from_a_service() -> None:
    class Seeding(PreparingReadingService):
        def prepare_iteration(self, start: Any) -> Any:
            from dataclasses import replace

            return replace(start, seed=7)

    loader: DataLoader2[Any] = DataLoader2(_random_graph(), reading_service=Seeding())
    got = list(loader)
    assert loader.state_dict()["seed"] == 7
    again: DataLoader2[Any] = DataLoader2(_random_graph())
    again.seed(7)
    assert list(again) == got


def test_without_a_process_group_there_is_an_error_that_helps() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        DataLoader2(_random_graph(), reading_service=DistributedReadingService())
