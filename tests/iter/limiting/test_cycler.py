"""``cycle``: rounds that shuffle anew, and an end where there is nothing to turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import IterDataPipe, iterate
from torchpipe.testing import CountingSource, check_node


@pytest.mark.parametrize("count", [0, 1, 3, None])
def test_L2_exact_resume(count: int | None) -> None:
    check_node(lambda: CountingSource(range(4)).cycle(count), limit=15)
    check_node(lambda: CountingSource(range(4)).shuffle().cycle(count), limit=15, pulls=lambda k: k + 4)


def test_L2_exact_resume_of_nested_cycles_and_nodes_without_state() -> None:
    class Plain(IterDataPipe[Any]):
        def __init__(self, datapipe: Any) -> None:
            self.datapipe = datapipe

        def __iter__(self) -> Iterator[Any]:
            yield from self.datapipe

    check_node(lambda: Plain(CountingSource(range(4)).shuffle()).cycle(2).cycle(2), pulls=lambda k: k + 4)


def test_every_round_shuffles_anew() -> None:
    items = list(iterate(IterableWrapper(range(20)).shuffle().cycle(2).cycle(2)))
    rounds = [items[start : start + 20] for start in range(0, 80, 20)]
    assert all(sorted(one) == list(range(20)) for one in rounds)
    assert len({tuple(one) for one in rounds}) == 4


def test_it_looks_no_further_than_it_yields() -> None:
    source = CountingSource(range(3))
    iterator = iterate(source.cycle())
    iterator.drop(3)
    assert source.pulls.total == 3
    iterator.drop(4)
    assert source.pulls.total == 7
    assert source.pulls.open_passes == 1
    iterator.close()
    assert source.pulls.open_passes == 0


def test_L7_an_endless_cycle_over_nothing_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="round 0 and found no item"):
        next(iterate(IterableWrapper([]).cycle()))
    with pytest.raises(RuntimeError, match="Does shard 1 of 2 get any"):
        next(iterate(IterableWrapper([1]).sharding_filter().cycle(), shard=1, num_shards=2))
    assert list(IterableWrapper([]).cycle(3)) == []


def test_len() -> None:
    assert len(IterableWrapper(range(3)).cycle(2)) == 6
    with pytest.raises(TypeError, match="never ends"):
        len(IterableWrapper(range(3)).cycle())
