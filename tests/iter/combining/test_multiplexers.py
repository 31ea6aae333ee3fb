"""``mux``, ``mux_longest``, ``zip_longest`` and ``SampleMultiplexer``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, Multiplexer, MultiplexerLongest, SampleMultiplexer, ZipperLongest
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


@given(LENGTHS)
def test_L2_sample_multiplexer_resumes_exactly(lengths: list[int]) -> None:
    def make() -> SampleMultiplexer[Any]:
        return SampleMultiplexer({source: number + 1 for number, source in enumerate(sources(lengths))})

    check_node(make, epochs=[0], num_shards=1, pulls=lambda k: k)
    items = list(make())
    assert len(items) == len(make()) == sum(lengths)
    for number, length in enumerate(lengths):
        assert [index for place, index in items if place == number] == list(range(length))


def test_functional_forms() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper("ab")
    assert list(one.mux(other)) == [0, "a", 1, "b"]
    assert list(one.mux_longest(other)) == [0, "a", 1, "b", 2]
    assert list(one.zip_longest(other)) == [(0, "a"), (1, "b"), (2, None)]
    check_node(lambda: IterableWrapper(range(5)).shuffle().mux_longest(IterableWrapper(range(9)).shuffle()))


def test_weights_are_kept() -> None:
    often, seldom = IterableWrapper(["often"] * 4000), IterableWrapper(["seldom"] * 4000)
    node = SampleMultiplexer({often: 3, seldom: 1})
    items = [item for item, _ in zip(iterate(node), range(2000))]
    assert 1420 < items.count("often") < 1580  # 1500; four standard deviations
    assert items != [item for item, _ in zip(iterate(node, epoch=1), range(2000))]
    seeded = SampleMultiplexer({often: 3, seldom: 1}, seed=5)
    assert list(iterate(seeded, seed=1)) == list(iterate(seeded, seed=2)) != list(iterate(node, seed=1))


def test_L8_forged_states_are_refused() -> None:
    one, other = IterableWrapper(range(3)), IterableWrapper("ab")
    cases: list[Any] = [
        (one.mux(other), [{"left": [1, 2]}, {"left": 3}]),
        (one.mux_longest(other), [{"turn": 2}, {"ended": [True]}, {"ended": [1, 0]}, {"ended": 3}]),
        (SampleMultiplexer({one: 1, other: 1}), [{"open": [2]}, {"open": [[]]}, {"open": [0, 1, 1]}, {"random": 3}]),
    ]
    for node, changes in cases:
        for change in changes:
            with pytest.raises(StateError):
                iterate(node).load_state_dict(iterate(node).state_dict() | change)
