"""What is foretold for other numbers of workers heeds what more of them would not make quicker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch.utils.data import Sampler

from tests.measured import measured
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.observe.advice import advise
from torchpipe.observe.outlook import Prediction
from torchpipe.stats import (
    ConsumerStats,
    FeedStats,
    LoaderStats,
    MergeStats,
    NodeStats,
    ProcessStats,
    StageStats,
)
from torchpipe.stats.model import Section

ITEMS = 101  # of which each after the first takes 20 ms of one of two workers, and 1 ms of the loop


def seen(*nodes: NodeStats, wait_s: float = 0.9, **more: Any) -> LoaderStats:
    """A loop that waits for two workers."""
    workers = tuple(
        ProcessStats(name=f"worker {number}", kind="worker", pid=number, items=50, making_s=1.0, shards=(number,))
        for number in (0, 1)
    )
    slow = NodeStats(number=9, name="Mapper(slow)", section="shard", inputs=(8,), items=100, self_s=2.0)
    source = NodeStats(number=8, name="Source", section="shard", items=100, self_s=0.0)
    main = ProcessStats(name="main", kind="main", pid=9, cpu_s=0.0)
    known = LoaderStats(
        state="running",
        measured=True,
        epoch=0,
        delivered=ITEMS,
        total=None,
        began_at=1.0,
        workers=2,
        shards=2,
        method="fork",
        cores=64,
        consumer=ConsumerStats(items=ITEMS, elapsed_s=1.0, wait_s=wait_s, start_s=0.1),
        merges=(MergeStats(wait_s=wait_s, shard_wait_s=(wait_s / 2,) * 2),),
        nodes=(source, slow, *nodes),
        processes=(main, *(replace(worker, cpu_s=0.0) for worker in workers)),
    )
    return replace(known, **more)


def rate(stats: LoaderStats, workers: int) -> float:
    found: tuple[Prediction, ...] = advise(stats).predictions
    return next(item.items_per_s for item in found if item.workers == workers)


def once(section: Section, self_s: float, number: int = 1) -> NodeStats:
    return NodeStats(number=number, name="Once", section=section, items=100, self_s=self_s, processes=1)


def test_workers_deliver_as_much_as_the_loop_can_take() -> None:
    assert rate(seen(), 2) == pytest.approx(100)
    assert rate(seen(), 16) == pytest.approx(800)
    assert advise(seen()).keeps_up == 20


def dispatcher() -> LoaderStats:
    """It is 100 items ahead of the workers, of which it has dealt 200."""
    process = ProcessStats(name="dispatcher", kind="dispatcher", pid=5, making_s=1.0, cpu_s=0.0)
    stats = seen(replace(once("dispatch", 1.0), items=200), dispatcher=True)
    slow = replace(stats.nodes[1], inputs=(1,))
    return replace(stats, nodes=(*stats.nodes[2:], slow), processes=(*stats.processes, process))


def stage(**more: Any) -> tuple[StageStats, ...]:
    feed = FeedStats(ITEMS, 0, 0.9, 0.0, pull_s=0.9, **more)
    return (StageStats(name="ToDevice", node=2, device=True, threads=1, feed=feed),)


@pytest.mark.parametrize(
    ("stats", "most"),
    [
        (dispatcher(), 200),
        (seen(once("dispatch", 0.5)), 1 / 0.006),  # a sampler, in the loop's thread
        (seen(once("main", 0.5), merges=(MergeStats(wait_s=0.5),)), 1 / 0.006),
        (seen(once("main", 0.5), replace(once("main", 0.0, 2), inputs=(1,)), stages=stage()), 200),  # in a stage
        (seen(replace(once("main", 0.0, 2), inputs=(9,)), stages=stage(transfer_s=0.5)), 200),
    ],
    ids=["dispatcher", "sampler", "main section", "before a stage", "moving"],
)
def test_what_is_done_once_bounds_any_number_of_workers(stats: LoaderStats, most: float) -> None:
    advice = advise(stats)
    assert rate(stats, 2) == pytest.approx(100, rel=0.01)
    assert rate(stats, 16) == pytest.approx(most, rel=0.02)
    assert advice.keeps_up is None
    assert "would keep up" not in advice.sentence


def test_more_workers_are_not_advised_where_what_runs_once_is_nearly_as_slow() -> None:
    advice = advise(seen(once("dispatch", 0.85)))
    assert "; `Once`, which runs once, takes nearly as long, so more workers would not help." in advice.sentence
    assert advice.change.startswith("Make what runs once cheaper")
    assert "num_workers" not in advice.change


def test_workers_that_keep_up_on_average_are_not_to_be_more() -> None:
    """The loop took its time in one place, and waited in others."""
    consumer = ConsumerStats(items=ITEMS, elapsed_s=4.0, wait_s=0.6, start_s=0.1)
    advice = advise(seen(consumer=consumer, merges=(MergeStats(wait_s=0.6, shard_wait_s=(0.3, 0.3)),)))
    assert advice.keeps_up == 1
    assert "on average the workers keep up" in advice.sentence
    assert "worker_prefetch_cnt" in advice.change
    assert "raise num_workers" not in advice.change


def test_cores_are_in_use_only_where_they_are() -> None:
    """Two items: what this process spent on starting others is not spent for each of them."""
    stats = seen(cores=2, consumer=ConsumerStats(items=2, elapsed_s=0.01, wait_s=0.009, start_s=0.5))
    main = replace(stats.processes[0], cpu_s=0.1)
    workers = [replace(item, items=1, making_s=0.01, cpu_s=0.005) for item in stats.processes[1:]]
    advice = advise(replace(stats, processes=(main, *workers)))
    assert "cores are in use" not in advice.sentence
    full = replace(seen(cores=2), processes=tuple(replace(item, cpu_s=1.0) for item in seen().processes))
    assert "all 2 cores are in use" in advise(full).sentence


def test_a_source_that_every_shard_reads_is_not_to_be_divided_behind_it() -> None:
    stats = seen()
    source = replace(stats.nodes[0], self_s=1.9, repeated=True)
    source_slow = replace(stats, nodes=(source, replace(stats.nodes[1], self_s=0.1)))
    advice = advise(source_slow)
    assert (advice.bottleneck, advice.node) == ("source", 8)
    assert "every shard does it for all items" in advice.sentence
    assert "sharding_round_robin_dispatch() right behind it" in advice.change
    assert "before it" not in advice.change


def test_several_slow_shards_are_told_as_several() -> None:
    stats = seen()
    main, first, second = stats.processes
    idle = replace(first, making_s=0.1, credit_wait_s=0.9, shards=(0, 2))
    one = advise(replace(stats, processes=(main, idle, second)))
    assert "shard 1 is the slow one: worker 1" in one.sentence
    two = advise(replace(stats, processes=(main, idle, replace(second, shards=(1, 3)))))
    assert "the slow one is among shards 1, 3: worker 1" in two.sentence


def slow(item: int) -> int:
    time.sleep(0.06)
    return item


class SlowBatches(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return ([slow(number)] for number in range(20))

    def __len__(self) -> int:
        return 20


def test_a_sampler_of_this_process_is_named_and_stays_one() -> None:
    loader: Any = measured(DataLoader(range(20), batch_sampler=SlowBatches()))  # type: ignore[arg-type]
    list(loader)
    advice = advise(replace(loader.stats(), others=None))
    assert "The slowest step is `SlowBatches`, in this process; it runs once" in advice.sentence
    assert {round(item.items_per_s) for item in advice.predictions} == {round(advice.predictions[0].items_per_s)}


def test_a_graph_without_a_sharding_point_gets_no_more_workers() -> None:
    """MultiProcessingReadingService(2) would refuse it."""
    with measured(DataLoader2(IterableWrapper(range(20)).map(slow))) as loader:
        list(loader)
        advice = loader.stats().advice
    assert "more workers would not help" in advice.sentence
    assert advice.change == "Put sharding_filter() before it, right after the source."


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_sampler_runs_in_no_dispatcher(method: Any) -> None:
    loader: Any = DataLoader(range(4), num_workers=2, worker_method=method)  # type: ignore[arg-type]
    assert loader.explain().startswith("dispatch section: your process\n")
    graph = IterableWrapper(range(4)).sharding_round_robin_dispatch()
    with DataLoader2(graph) as other:
        assert other.stats().dispatcher


def test_what_the_figures_cannot_carry_is_not_foretold() -> None:
    long = seen(consumer=ConsumerStats(items=ITEMS, elapsed_s=2.0, wait_s=1.8, start_s=0.1))
    assert advise(long).predictions
    short = replace(long, consumer=replace(long.consumer, elapsed_s=0.9, wait_s=0.8))
    crowded = replace(long, others=0.5)
    alone = replace(long, workers=0, processes=(replace(long.processes[0], making_s=1.8),))
    quick = replace(alone, consumer=replace(alone.consumer, items=10_000))
    assert advise(alone).predictions
    for stats in (short, crowded, quick):
        advice = advise(stats)
        assert advice.predictions == ()
        assert advice.keeps_up is None
        assert "would" not in advice.sentence
        assert "cores are in use" not in advice.sentence
    assert "Other programs keep the machine busy" in advise(crowded).change


def test_one_slow_batch_among_those_that_are_dealt_is_no_uneven_division() -> None:
    stats = seen(once("dispatch", 0.001))
    main, first, second = stats.processes
    advice = advise(replace(stats, processes=(main, replace(first, making_s=0.1, credit_wait_s=0.9), second)))
    assert advice.bottleneck == "merge"
    assert "some take far longer than others: worker 1 is busy 100 %" in advice.sentence
    assert "shard" not in str(advice)
