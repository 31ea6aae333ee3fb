"""``header``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


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
