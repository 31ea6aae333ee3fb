"""``mux``, ``mux_longest`` and ``zip_longest``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, Multiplexer, MultiplexerLongest, ZipperLongest
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node

LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


def sources(lengths: list[int]) -> list[CountingSource[Any]]:
    return [CountingSource([(number, index) for index in range(length)]) for number, length in enumerate(lengths)]


@given(LENGTHS)
def test_L2_mux_resumes_exactly(lengths: list[int]) -> None:
    check_node(lambda: Multiplexer(*sources(lengths)), epochs=[0], num_shards=1)
    whole = min(lengths)
    expected = [(number, index) for index in range(whole) for number in range(len(lengths))]
    assert list(Multiplexer(*sources(lengths))) == expected


@given(LENGTHS)
def test_L2_mux_longest_resumes_exactly(lengths: list[int]) -> None:
    check_node(lambda: MultiplexerLongest(*sources(lengths)), epochs=[0], num_shards=1)
    expected = [
        (number, index) for index in range(max(lengths)) for number, length in enumerate(lengths) if index < length
    ]
    assert list(MultiplexerLongest(*sources(lengths))) == expected


@given(LENGTHS)
def test_L2_zip_longest_resumes_exactly(lengths: list[int]) -> None:
    check_node(lambda: ZipperLongest(*sources(lengths), fill_value="-"), epochs=[0], num_shards=1)
    items = list(ZipperLongest(*sources(lengths), fill_value="-"))
    assert [sum(part != "-" for part in column) for column in zip(*items)] == (lengths if items else [])


def test_functional_forms() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper("ab")
    assert list(one.mux(other)) == [0, "a", 1, "b"]
    assert list(one.mux_longest(other)) == [0, "a", 1, "b", 2]
    assert list(one.zip_longest(other)) == [(0, "a"), (1, "b"), (2, None)]
    check_node(lambda: IterableWrapper(range(5)).shuffle().mux_longest(IterableWrapper(range(9)).shuffle()))


def test_L8_forged_states_are_refused() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper("ab")
    cases: list[Any] = [
        (one.mux(other), [{"left": [1, 2]}, {"left": 3}]),
        (one.mux_longest(other), [{"turn": 2}, {"ended": [True]}, {"ended": [1, 0]}, {"ended": 3}]),
    ]
    for node, changes in cases:
        for change in changes:
            with pytest.raises(StateError):
                iterate(node).load_state_dict(iterate(node).state_dict() | change)
