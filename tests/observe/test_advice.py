"""The advice where nothing, or nobody of the graph, holds the stream up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.measured import measured
from tests.observe.views.figures import BUSY, HOSTILE
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.observe.advice import advise
from torchpipe.stats import (
    ConsumerStats,
    Event,
    FeedStats,
    LoaderStats,
    MergeStats,
    NodeStats,
    ProcessStats,
    StageStats,
)


def nothing(item: int) -> int:
    raise ValueError(item)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader2(IterableWrapper([])),
        lambda: DataLoader2(
            IterableWrapper([1]).sharding_filter().map(nothing).on_error("skip"),
            reading_service=MultiProcessingReadingService(1, "fork"),
        ),
        lambda: DataLoader([]),
    ],
    ids=["in process", "all left out", "DataLoader"],
)
def test_an_epoch_without_items_is_over(make: Any) -> None:
    with make() as loader:
        assert list(loader) == []
        stats = loader.stats()
    assert stats.advice.sentence.startswith("The epoch has ended, and this iterator had no item to deliver.")
    assert ("left out" in stats.advice.sentence) is bool(stats.events)


def seen(**more: Any) -> LoaderStats:
    """A loop that waits, and merges that do not."""
    nodes = (NodeStats(number=1, name="Mapper", section="shard"), NodeStats(number=2, name="ToDevice", section="main"))
    consumer = ConsumerStats(items=100, elapsed_s=2.0, wait_s=1.5, start_s=0.1)
    return replace(BUSY, consumer=consumer, nodes=nodes, merges=(MergeStats(wait_s=0.1),), **more)


def stage(**feed: Any) -> tuple[StageStats, ...]:
    return (StageStats(name="ToDevice", node=2, device=True, threads=1, feed=FeedStats(100, 1, 0.1, 0.2, **feed)),)


def test_the_main_section_is_not_blamed_for_what_is_not_in_it() -> None:
    own = advise(seen(stages=stage(syncs=100)))
    assert own.bottleneck == "consumer"
    assert "the slowest step is your own code" in own.sentence
    handing = advise(seen(stages=stage()))
    assert (handing.bottleneck, handing.node) == ("device", 2)
    behind = replace(seen(stages=()), nodes=seen().nodes[:1])
    ranks = advise(replace(behind, ranks=2))
    assert ranks.bottleneck == "ranks"
    assert "waited for the others" in ranks.sentence
    nobody = advise(behind)
    assert (nobody.bottleneck, "rank" in nobody.sentence) == ("nothing", False)
    for advice in (own, handing, ranks, nobody):
        assert "main section" not in advice.sentence
        assert "to_device()" not in advice.change


def test_a_sampler_that_takes_no_time_is_not_to_be_made_quicker() -> None:
    with measured(DataLoader(list(range(4000)), batch_size=2, num_workers=2)) as loader:  # type: ignore[arg-type]
        list(loader)
        stats = loader.stats()
    waiting = tuple(
        replace(process, making_s=0.01, sending_s=0.01, credit_wait_s=0.0, input_wait_s=1.0)
        if process.kind == "worker"
        else process
        for process in stats.processes
    )
    consumer = ConsumerStats(items=2000, elapsed_s=1.0, wait_s=0.95, start_s=0.1)
    merges = (MergeStats(wait_s=0.95, shard_wait_s=(0.5, 0.45)),)
    for sampler_s, bottleneck in ((0.01, "transport"), (0.9, "input")):
        nodes = (replace(stats.nodes[0], self_s=sampler_s), *stats.nodes[1:])
        advice = advise(replace(stats, processes=waiting, consumer=consumer, merges=merges, nodes=nodes))
        assert advice.bottleneck == bottleneck


def test_text_commands_no_terminal_and_stays_short() -> None:
    event = Event(at=BUSY.began_at or 0.0, kind="skip", process="worker 0", text="\x1b[2Jbad\n" * 100)
    text = str(replace(BUSY, events=(*BUSY.events, event, event)))
    assert "\x1b" not in text
    assert HOSTILE not in text
    assert "events: 1 restart, 2 skips; the last, of worker 0: " in text
    assert max(map(len, text.splitlines())) < 400


def waiting(*nodes: NodeStats, doing_s: float = 0.0, restarts: int = 0, elapsed_s: float = 40.0) -> LoaderStats:
    """A loop that waits nearly all the time for two workers, of which the first is at an item for ``doing_s``."""
    workers = tuple(
        ProcessStats(
            name=f"worker {number}", kind="worker", pid=70 + number, doing="making", making_s=elapsed_s, items=50,
            doing_s=0.0 if number else doing_s, restarts=restarts, shards=(number,), cpu_s=0.1,
        )
        for number in range(2)
    )  # fmt: skip
    return replace(
        BUSY, state="running", cores=64, workers=2, shards=2, events=(), stages=(), nodes=nodes, processes=workers,
        consumer=ConsumerStats(items=100, elapsed_s=elapsed_s, wait_s=0.95 * elapsed_s, start_s=0.1),
        merges=(MergeStats(wait_s=0.95 * elapsed_s, shard_wait_s=(1.0, 1.0)),), others=0.0,
    )  # fmt: skip


SLOW = NodeStats(number=2, name="Mapper(slow)", section="shard", inputs=(1,), items=100, self_s=70.0)


def test_who_hangs_at_an_item_is_named_and_more_workers_are_not_advised() -> None:
    assert "num_workers=" in advise(waiting(SLOW)).change
    advice = advise(waiting(SLOW, doing_s=30.0))
    assert "worker 0 (pid 70) is at one item: 30 s so far" in advice.sentence
    assert "timeout=" in advice.change
    assert "num_workers" not in advice.change


def test_where_processes_die_more_of_them_are_not_advised() -> None:
    advice = advise(waiting(SLOW, restarts=1))
    assert "2 processes have died meanwhile" in advice.sentence
    assert "num_workers" not in advice.change
    assert "num_workers=" in advise(waiting(SLOW, restarts=1, elapsed_s=4000.0)).change  # long ago, or hardly noticed


def test_what_every_shard_reads_is_not_slow_reading_that_more_workers_mend() -> None:
    source = NodeStats(number=1, name="Reader", section="shard", items=200, self_s=71.0, repeated=True)
    advice = advise(waiting(source, SLOW))
    assert "`Reader`" in advice.sentence
    assert "shard_pieces" not in advice.change
    files = advise(waiting(replace(source, divided_by="shard_pieces"), SLOW))
    assert "Put shard_pieces() right behind `Reader`, in the place of sharding_filter()" in files.change
    assert "every shard does it for all items, so more workers would not help" in advice.sentence
    assert "num_workers" not in advice.change
