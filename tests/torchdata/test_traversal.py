"""torchdata's functions on graphs: what they find, and what they change in place."""

from __future__ import annotations

from typing import Any

import pytest

from reading_services import SeedGenerator
from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper, Mapper, Zipper
from torchpipe.torchdata.dataloader2.graph import (
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_graph_random_seed,
    traverse_dps,
)


class Negated(IterDataPipe[int]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __iter__(self) -> Any:
        return (-item for item in self.datapipe)


def diamond() -> tuple[Any, ...]:
    source = IterableWrapper(range(1, 4))
    left, right = source.map(abs), source.map(int)
    return source, left, right, left.zip(right)


def test_the_graph_is_nested() -> None:
    source, left, right, last = diamond()
    above = {id(source): (source, {})}
    assert traverse_dps(last) == {id(last): (last, {id(left): (left, above), id(right): (right, above)})}
    assert find_dps(traverse_dps(last), Mapper) == [left, right]
    assert find_dps(traverse_dps(last), IterDataPipe) == []  # the class itself, nothing derived
    assert list_dps(traverse_dps(last)) == [last, left, right, source]
    assert list_dps(traverse_dps(last), exclude_dps=left) == [last, right]
    assert list_dps(traverse_dps(last), exclude_dps=[left, right]) == [last]


def test_many_diamonds_do_not_multiply() -> None:
    last: Any = IterableWrapper(range(3))
    for _ in range(60):  # 2**60 paths
        last = last.map(abs).zip(last.map(int))
    assert len(list_dps(traverse_dps(last))) == 181


def test_a_cycle_is_cut_where_it_closes() -> None:
    source, left, *_ = diamond()
    source.back = left
    assert traverse_dps(left) == {id(left): (left, {id(source): (source, {})})}
    assert traverse_dps(source) == {id(source): (source, {id(left): (left, {})})}


def test_replacing_changes_all_readers_in_place() -> None:
    source, left, right, last = diamond()
    graph = replace_dp(traverse_dps(last), source, Negated(source))  # reads what it replaces
    assert [type(node) for node in list_dps(graph)] == [Zipper, Mapper, Mapper, Negated, IterableWrapper]
    assert left.source is right.source
    assert list(last) == [(1, -1), (2, -2), (3, -3)]
    graph = replace_dp(graph, left, Negated(right))
    assert list(last) == [(1, -1), (2, -2), (3, -3)]
    end = Negated(last)
    assert list(replace_dp(graph, last, end)) == [id(end)]


def test_removing_a_node() -> None:
    source, left, right, last = diamond()
    remove_dp(traverse_dps(last), left)
    assert list(last) == [(1, 1), (2, 2), (3, 3)]
    assert list_dps(traverse_dps(last)) == [last, source, right]
    end = last.map(str)
    assert list(remove_dp(traverse_dps(end), end)) == [id(last)]
    with pytest.raises(RuntimeError, match="Cannot remove the source DataPipe IterableWrapper"):
        remove_dp(traverse_dps(last), source)
    with pytest.raises(RuntimeError, match="Cannot remove the receiving DataPipe Zipper: it has 2 inputs"):
        remove_dp(traverse_dps(last), last)


def test_seeds_before_a_sharding_point_are_shared() -> None:
    def seeds(worker: int) -> tuple[Any, Any]:
        before: Any = IterableWrapper(range(9)).shuffle()
        after = before.sharding_filter().shuffle()
        set_graph_random_seed(after, SeedGenerator(5).spawn(worker))
        return before.own_seed, after.own_seed

    (shared, own), (other_shared, other_own) = seeds(0), seeds(1)
    assert shared == other_shared
    assert len({shared, own, other_own}) == 3
    assert seeds(0) == (shared, own)
