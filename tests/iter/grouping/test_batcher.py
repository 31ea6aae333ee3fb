"""``batch`` and ``unbatch``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import DataChunk, IterableWrapper
from torchpipe.testing import CountingSource, check_node


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [0, 1, 6, 8])
def test_L2_exact_resume(length: int, drop_last: bool) -> None:
    check_node(lambda: CountingSource(range(length)).batch(3, drop_last), pulls=lambda k: 3 * k)


@given(st.integers(0, 20), st.integers(1, 6))
def test_the_last_batch(length: int, size: int) -> None:
    full, rest = divmod(length, size)
    node = IterableWrapper(range(length))
    kept = list(node.batch(size))
    assert list(node.batch(size, last="keep")) == kept
    assert list(node.batch(size, last="drop")) == kept[:full] == list(node.batch(size, drop_last=True))
    repeated = list(node.batch(size, last="repeat"))
    assert repeated[:full] == kept[:full]
    assert len(repeated) == len(kept) == len(node.batch(size, last="repeat"))
    if rest:
        assert repeated[-1] == [kept[-1][place % rest] for place in range(size)]
        with pytest.raises(ValueError, match=f"the last batch has {rest} items instead of {size}"):
            list(node.batch(size, last="raise"))
    else:
        assert list(node.batch(size, last="raise")) == kept


def test_L2_exact_resume_of_a_repeated_last_batch() -> None:
    check_node(lambda: CountingSource(range(8)).batch(3, last="repeat"), pulls=lambda k: 3 * k, epochs=[0])


@given(st.lists(st.integers()), st.integers(1, 8))
def test_batches_are_the_items_in_order(items: list[int], size: int) -> None:
    batches = list(IterableWrapper(items).batch(size))
    assert [item for batch in batches for item in batch] == items
    assert all(len(batch) == size for batch in batches[:-1])
    assert len(IterableWrapper(items).batch(size)) == len(batches)


def test_the_wrapper_class() -> None:
    assert type(next(iter(IterableWrapper(range(3)).batch(2)))) is DataChunk
    assert list(IterableWrapper(range(3)).batch(2, wrapper_class=tuple)) == [(0, 1), (2,)]


NESTED: list[Any] = [[[0, 1], [2]], [], [[3, 4], [5]], [[6]], [[]]]


@pytest.mark.parametrize(("level", "pulls"), [(0, 1), (1, 2), (2, 2), (-1, 2)])
def test_L2_exact_resume_of_unbatch(level: int, pulls: int) -> None:
    check_node(lambda: CountingSource(NESTED).unbatch(level), pulls=lambda k: pulls * k)


@given(st.lists(st.lists(st.lists(st.integers(), max_size=3), max_size=3), max_size=4), st.integers(1, 4))
def test_L2_unbatch_resumes_within_deep_lists(items: list[list[list[int]]], size: int) -> None:
    check_node(
        lambda: CountingSource(items).batch(size, wrapper_class=list).unbatch(3),
        pulls=lambda k: len(items),
        epochs=[0],
        num_shards=1,
    )


def test_levels() -> None:
    node = IterableWrapper(NESTED)
    assert list(node.unbatch()) == [[0, 1], [2], [3, 4], [5], [6], []]
    assert list(node.unbatch(2)) == list(node.unbatch(-1)) == [0, 1, 2, 3, 4, 5, 6]
    assert list(node.unbatch(0)) == NESTED
    assert list(IterableWrapper([[1, (2, 3)], "ab"]).unbatch(-1)) == [1, (2, 3), "ab"]
    assert list(IterableWrapper(range(5)).batch(2).unbatch()) == [0, 1, 2, 3, 4]


def test_too_deep_is_an_error() -> None:
    with pytest.raises(IndexError, match=r"unbatch_level=3\) goes deeper .* found a int"):
        list(IterableWrapper(NESTED).unbatch(3))
