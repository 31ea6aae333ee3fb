"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.graph import draw, plan
from torchpipe.graph.draw import rows_of_plan
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper, JsonlReader
from torchpipe.map import SequenceWrapper


def double(item: int) -> int:
    return 2 * item


def test_the_sections_stand_one_below_the_other() -> None:
    trunk = IterableWrapper(range(4)).shuffle().sharding_filter()
    graph = trunk.map(double).zip(trunk).batch(2).to_device("cpu").map(len)
    assert draw(plan(graph), "3 shards in 2 worker processes", "in this process", ("Prefetcher(10)",)).splitlines() == [
        "shard section: 3 shards in 2 worker processes",
        "    1 IterableWrapper",
        "    2 Shuffler  <- 1",
        "    3 ShardingFilter  <- 2  [divides the stream between the shards]",
        "    4 Mapper(double)  <- 3",
        "    5 Zipper  <- 4, 3",
        "    6 Batcher  <- 5",
        "main section: in this process",
        "  merge: one item from each shard in turn",
        "    7 ToDevice  <- 6",
        "    8 Mapper(len)  <- 7",
        "  Prefetcher(10) (added by the reading service)",
    ]


def test_a_sharding_point_says_among_whom_it_divides() -> None:
    graph = IterableWrapper(range(4))
    graph = graph.sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED).sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    assert draw(plan(graph), "in workers", "here").splitlines()[1:4] == [
        "    1 IterableWrapper",
        "    2 ShardingFilter  <- 1  [divides the stream between the ranks]",
        "    3 ShardingFilter  <- 2  [divides the stream between the shards of a rank]",
    ]


def test_what_is_dispatched_comes_first() -> None:
    graph = IterableWrapper(range(4)).sharding_round_robin_dispatch().map(double)
    assert draw(plan(graph), "in workers", "here", dispatch_section="in a dispatcher").splitlines() == [
        "dispatch section: in a dispatcher",
        "    1 IterableWrapper",
        "    2 ShardingRoundRobinDispatcher  <- 1  [divides the stream between the shards of a rank]",
        "shard section: in workers",
        "    3 Mapper(double)  <- 2",
        "main section: here",
        "  merge: one item from each shard in turn",
    ]


class Rows:
    """Can only be iterated."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def marked(graph: Any) -> list[str]:
    """The names of the nodes of which every shard does all the work."""
    lines = draw(plan(graph), "in workers", "here").splitlines()
    return [line.split()[1] for line in lines if line.endswith("[every shard does all of this]")]


def test_it_says_what_every_shard_does() -> None:
    data = IterableWrapper([[1], [2]])
    assert marked(data.shuffle().sharding_filter().map(double)) == []
    assert marked(data.take(1).concat(data).shuffle().sharding_filter().shuffle()) == []
    assert marked(IterableWrapper(range(3)).shuffle().sharding_filter()) == []
    assert marked(SequenceWrapper("abc").map(str).shuffle().sharding_filter()) == []
    assert marked(SequenceWrapper("abc").map(str).to_iter_datapipe().shuffle().sharding_filter()) == []
    assert marked(data.map(double).shuffle().sharding_filter().map(str)) == ["Mapper(double)", "Shuffler"]
    assert marked(IterableWrapper(Rows()).shuffle().sharding_filter()) == ["IterableWrapper", "Shuffler"]
    assert marked(data.map(double).zip(data.sharding_filter().map(str))) == []
    assert marked(data.map(double).sharding_round_robin_dispatch().map(str)) == []


def test_it_says_what_every_shard_reads_and_what_would_divide_it() -> None:
    reader = JsonlReader(__file__)
    said = (
        "    2 JsonlReader  <- 1  [every shard reads all of this: .shard_pieces() behind it, and no sharding_filter, "
        "lets each read its own part]"
    )
    for graph in (reader.sharding_filter(), reader.map(double).sharding_filter(), reader.shuffle().sharding_filter()):
        assert said in draw(plan(graph), "in workers", "here").splitlines()
    assert marked(reader.shuffle().sharding_filter()) == ["Shuffler"]
    assert [row.name for row in rows_of_plan(plan(reader.shuffle().sharding_filter())) if row.repeated] == [
        "JsonlReader",
        "Shuffler",
    ]
    assert not any(row.repeated for row in rows_of_plan(plan(reader.sharding_filter())))
    divided = reader.shard_pieces().map(double)
    assert not any(row.repeated or row.divided_by for row in rows_of_plan(plan(divided)))
