"""The advice where nothing, or nobody of the graph, holds the stream up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reading_services import MultiProcessingReadingService
from tests.views.figures import BUSY, HOSTILE
from torchpipe import DataLoader, DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.stats import ConsumerStats, Event, FeedStats, LoaderStats, MergeStats, NodeStats, StageStats
from torchpipe.stats.advice import advise


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
    with DataLoader(list(range(4000)), batch_size=2, num_workers=2, measure=True) as loader:  # type: ignore[arg-type]
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
