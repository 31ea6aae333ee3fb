"""``enumerate``, ``header``, ``repeat``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_L2_enumerate_resumes_exactly() -> None:
    check_node(lambda: CountingSource("abcd").enumerate())
    check_node(lambda: CountingSource("abcd").enumerate(-2))


def test_numbers() -> None:
    assert list(IterableWrapper("ab").enumerate(5)) == [(5, "a"), (6, "b")]


@given(st.integers(0, 8), st.one_of(st.none(), st.integers(0, 10)))
def test_L2_header_resumes_exactly_and_pulls_no_more_than_its_limit(length: int, limit: int | None) -> None:
    expected = list(range(length))[:limit]
    check_node(
        lambda: CountingSource(range(length)).header(limit), pulls=lambda k: min(k, 99 if limit is None else limit)
    )
    source = CountingSource(range(length))
    assert list(source.header(limit)) == expected
    assert source.pulls.total == len(expected)
    assert len(source.header(limit)) == len(expected)


def test_header_does_not_know_its_length_if_its_input_does_not() -> None:
    with pytest.raises(TypeError):
        len(IterableWrapper(range(3)).filter(bool).header(2))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_L2_repeat_resumes_exactly(times: int) -> None:
    check_node(lambda: CountingSource(range(5)).repeat(times))
    check_node(lambda: CountingSource([[1], [2]]).shuffle().repeat(times), pulls=lambda k: 2)


def test_repeats() -> None:
    assert list(IterableWrapper("ab").repeat(2)) == list("aabb")
    assert len(IterableWrapper("ab").repeat(3)) == 6
    one, other = IterableWrapper([[1]]).repeat(2)
    assert one is not other
    assert one == other
