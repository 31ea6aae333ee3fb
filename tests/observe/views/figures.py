"""A loader's figures with something of everything, and names that would break a page: for tests of what is drawn."""

from __future__ import annotations

from torchpipe.stats import (
    ConsumerStats,
    Event,
    FeedStats,
    LoaderStats,
    Moment,
    NodeStats,
    ProcessStats,
    QueueStats,
    StageStats,
)

HOSTILE = 'Mapper(<lambda> & "quoted" </text></script>\x00\x1b[31m)'

BUSY = LoaderStats(
    state="running",
    measured=True,
    epoch=1,
    delivered=201,
    total=750,
    began_at=1_795_364_000.0,
    workers=2,
    shards=2,
    method="spawn",
    cores=2,
    restarts=1,
    consumer=ConsumerStats(items=201, elapsed_s=2.0, wait_s=1.5, start_s=0.3),
    stages=(StageStats(name="ToDevice", node=6, device=True, threads=1, feed=FeedStats(201, 1, 1.5, 0.2)),),
    nodes=(
        NodeStats(number=1, name="FileLister", section="dispatch", items=3000, self_s=0.02, mean_s=7e-6),
        NodeStats(
            number=2, name="ShardingRoundRobinDispatcher", section="dispatch", inputs=(1,), items=3000, self_s=0.0
        ),
        NodeStats(
            number=3,
            name="Mapper(decode)",
            section="shard",
            inputs=(2,),
            items=820,
            self_s=3.1,
            mean_s=4e-3,
            exact=True,
        ),
        NodeStats(number=4, name=HOSTILE, section="shard", inputs=(2,), items=820, self_s=0.4, errors=2, repeated=True),
        NodeStats(number=5, name="Zipper", section="shard", inputs=(3, 4), items=820, self_s=0.1),
        NodeStats(number=6, name="ToDevice", section="main", inputs=(5,)),
    ),
    processes=(
        ProcessStats(name="main", kind="main", pid=10, making_s=0.0, input_wait_s=1.5, cpu_s=0.3),
        ProcessStats(name="dispatcher", kind="dispatcher", pid=11, making_s=0.1, credit_wait_s=1.9),
        ProcessStats(name="worker 0", kind="worker", pid=12, making_s=1.8, sending_s=0.1, restarts=1, cpu_s=1.2),
        ProcessStats(name="worker 1", kind="worker", pid=13, making_s=1.2, input_wait_s=0.7, memory_bytes=330_000_000),
    ),
    queues=(QueueStats(name="shard 0", source="worker 0", target="main", unit="chunks", fill=2, limit=10),),
    events=(Event(at=1_795_364_001.0, kind="restart", process="worker 0", text="died by SIGKILL <was replaced>"),),
    timeline=tuple(Moment(at_s=0.25 * n, items=25 * n, wait_s=0.19 * n) for n in range(1, 9)),
)
"""An epoch in full course, with a dispatcher, two workers and a device stage."""
