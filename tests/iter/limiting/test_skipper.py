"""``skip`` and ``take``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.testing import CountingSource, check_node


@given(st.integers(0, 12), st.integers(0, 15))
def test_skip_and_take_divide_a_stream(length: int, count: int) -> None:
    node = IterableWrapper(range(length))
    first, rest = node.take(count), node.skip(count)
    assert [*first, *rest] == list(range(length))
    assert len(first) == min(count, length)
    assert len(rest) == max(0, length - count)


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(9)).skip(3), pulls=lambda k: k + 3)
    check_node(lambda: CountingSource(range(9)).take(4))
    check_node(lambda: IterableWrapper([[n] for n in range(12)]).skip(5).shuffle().sharding_filter(), epochs=[0])


def test_items_that_are_left_out_are_not_made() -> None:
    made: list[int] = []

    def make(index: int) -> int:
        made.append(index)
        return index

    assert list(SequenceWrapper(range(10)).map(make).to_iter_datapipe().skip(7)) == [7, 8, 9]
    assert made == [7, 8, 9]
