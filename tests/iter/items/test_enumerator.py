"""``enumerate``, ``repeat``."""

from __future__ import annotations

import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def test_L2_enumerate_resumes_exactly() -> None:
    check_node(lambda: CountingSource("abcd").enumerate())
    check_node(lambda: CountingSource("abcd").enumerate(-2))


def test_numbers() -> None:
    assert list(IterableWrapper("ab").enumerate(5)) == [(5, "a"), (6, "b")]


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
