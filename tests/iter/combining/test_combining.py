"""``zip`` and ``concat``."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import Concater, IterableWrapper, Zipper
from torchpipe.testing import CountingSource, check_node

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def sources(lengths: list[int]) -> list[CountingSource[Any]]:
    return [CountingSource([(number, index) for index in range(length)]) for number, length in enumerate(lengths)]


@given(LENGTHS)
def test_L2_zip_resumes_exactly(lengths: list[int]) -> None:
    check_node(lambda: Zipper(*sources(lengths)), epochs=[0], num_shards=1)
    assert list(Zipper(*sources(lengths))) == list(zip(*sources(lengths)))
    assert len(Zipper(*sources(lengths))) == min(lengths)


@given(LENGTHS)
def test_L2_concat_resumes_exactly(lengths: list[int]) -> None:
    check_node(lambda: Concater(*sources(lengths)), epochs=[0], num_shards=1)
    assert len(Concater(*sources(lengths))) == sum(lengths)


def test_functional_forms() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper("ab")
    assert list(one.zip(other)) == [(0, "a"), (1, "b")]
    assert list(one.concat(other, one)) == [0, 1, 2, "a", "b", 0, 1, 2]
    check_node(lambda: IterableWrapper(range(5)).shuffle().concat(IterableWrapper(range(9)).shuffle()))


def test_one_node_may_be_several_inputs() -> None:
    node = IterableWrapper(range(5)).shuffle()
    assert all(one == other for one, other in node.zip(node))
    assert sorted(node.concat(node)) == sorted([*range(5), *range(5)])
