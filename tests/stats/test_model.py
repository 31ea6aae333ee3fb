"""The figures as data."""

from __future__ import annotations

import dataclasses

import pytest

from torchpipe.stats import (
    ConsumerStats,
    Event,
    FeedStats,
    LoaderStats,
    MergeStats,
    Moment,
    NodeStats,
    ProcessStats,
    QueueStats,
    StageStats,
)

WHOLE = LoaderStats(
    state="running",
    measured=True,
    epoch=1,
    delivered=20,
    total=None,
    began_at=1.5,
    workers=2,
    shards=2,
    method="fork",
    cores=2,
    consumer=ConsumerStats(items=11, elapsed_s=2.0, wait_s=0.5, start_s=0.1),
    merges=(MergeStats(wait_s=0.5, shard_wait_s=(0.1, 0.4)),),
    stages=(StageStats(name="ToDevice", node=2, device=True, threads=1, feed=FeedStats(3, 1, 0.1, 0.2)),),
    nodes=(NodeStats(number=1, name="Mapper(f)", section="shard", inputs=(), items=20, self_s=1e-4, exact=True),),
    processes=(ProcessStats(name="worker 0", kind="worker", pid=7, shards=(0, 2), making_s=3.0, credit_wait_s=1.0),),
    queues=(QueueStats(name="shard 0", source="worker 0", target="main", unit="chunks", fill=2, limit=10),),
    events=(Event(at=1.0, kind="restart", process="worker 0", text="it died"),),
    timeline=(Moment(at_s=0.25, items=3, wait_s=0.1),),
)


def test_what_follows_from_figures() -> None:
    consumer, process = WHOLE.consumer, WHOLE.processes[0]
    assert consumer.own_s == 1.5
    assert consumer.wait_share == 0.25
    assert consumer.items_per_s == 5.0  # the first is where the time begins
    assert process.busy_share == 0.75
    assert (
        ConsumerStats().wait_share
        == ConsumerStats().items_per_s
        == ProcessStats(name="", kind="main", pid=0).busy_share
        == 0
    )


def test_figures_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        WHOLE.epoch = 2  # type: ignore[misc]
