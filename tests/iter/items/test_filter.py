"""``filter``: what is kept, what counts as a yes, streams that are thrown away."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.utils.common import StreamWrapper

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def odd(item: int) -> bool:
    return item % 2 == 1


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(9)).filter(odd), pulls=lambda k: 2 * k)


def test_nothing_left() -> None:
    check_node(lambda: CountingSource(range(3)).filter(lambda item: False))


@given(st.lists(st.integers()))
def test_it_keeps_what_the_function_says(items: list[int]) -> None:
    assert list(IterableWrapper(items).filter(odd)) == [item for item in items if odd(item)]


def test_columns() -> None:
    items = [(1, 2), (2, 2), (2, 1)]
    assert list(IterableWrapper(items).filter(odd, 1)) == [(2, 1)]
    assert list(IterableWrapper(items).filter(lambda a, b: a == b, [0, 1])) == [(2, 2)]
    assert list(IterableWrapper([{"a": 1}, {"a": 2}]).filter(odd, "a")) == [{"a": 1}]


@pytest.mark.parametrize("yes", [True, np.True_, torch.tensor(True), torch.tensor([True])])
def test_a_yes(yes: Any) -> None:
    assert list(IterableWrapper([1]).filter(lambda item: yes)) == [1]


@pytest.mark.parametrize("no", [False, np.False_, torch.tensor(False)])
def test_a_no(no: Any) -> None:
    assert list(IterableWrapper([1]).filter(lambda item: no)) == []


@pytest.mark.parametrize("neither", [None, 1, 0, "", torch.tensor(1), torch.tensor([True, False])])
def test_neither_is_an_error_with_the_function_and_the_value(neither: Any) -> None:
    with pytest.raises(ValueError, match=r"True or False, .*lambda.* returned .*a return"):
        list(IterableWrapper([1]).filter(lambda item: neither))


def test_streams_in_items_thrown_away_are_closed() -> None:
    streams = [StreamWrapper(io.BytesIO(b"x")) for _ in range(2)]
    kept = list(IterableWrapper(list(zip("ab", streams)), deepcopy=False).filter(lambda item: item[0] == "a"))
    assert [stream.closed for stream in streams] == [False, True]
    assert kept[0][1] is streams[0]


def test_its_length_is_not_known() -> None:
    with pytest.raises(TypeError):
        len(IterableWrapper([1]).filter(odd))
