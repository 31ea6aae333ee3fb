"""``sort`` and ``window_shuffle``: another order, within a window."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node


def windows(items: list[Any], size: int) -> list[list[Any]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


@given(st.lists(st.integers(0, 9)), st.integers(1, 7), st.booleans())
def test_windows_are_sorted_and_equal_ones_stay_in_order(items: list[int], size: int, reverse: bool) -> None:
    pairs = list(zip(items, range(len(items))))
    node = IterableWrapper(pairs).sort(size, lambda pair: pair[0], reverse=reverse)
    expected = [sorted(part, key=lambda pair: pair[0], reverse=reverse) for part in windows(pairs, size)]
    assert list(node) == [pair for part in expected for pair in part]
    assert len(node) == len(items)
    assert list(IterableWrapper(items).sort(100)) == sorted(items)


@given(st.integers(0, 30), st.integers(1, 7), st.integers(0, 3))
def test_L1_windows_are_shuffled_by_seed_and_epoch(length: int, size: int, seed: int) -> None:
    node = IterableWrapper(range(length)).window_shuffle(size)
    items = list(iterate(node, seed=seed))
    assert list(map(sorted, windows(items, size))) == windows(list(range(length)), size)
    assert items == list(iterate(node, seed=seed))
    if length >= 24 and size >= 5:
        assert len({tuple(iterate(node, seed=seed, epoch=epoch)) for epoch in range(3)}) == 3


def test_every_order_of_a_window_has_the_same_chance() -> None:
    node = IterableWrapper(range(3000)).window_shuffle(3)
    counts = Counter(tuple(item % 3 for item in window) for window in windows(list(iterate(node)), 3))
    assert len(counts) == 6
    assert all(120 < count < 220 for count in counts.values())  # 167 each; four standard deviations


def test_L2_exact_resume() -> None:
    words = ["ccc", "a", "bb", "", "dddd", "ee", "f"]
    check_node(lambda: CountingSource(words).sort(3, len), pulls=lambda k: -(-k // 3) * 3)
    check_node(lambda: CountingSource(range(11)).window_shuffle(4), pulls=lambda k: -(-k // 4) * 4)
    check_node(lambda: IterableWrapper([[n] for n in range(11)]).window_shuffle(4).sharding_filter(), epochs=[0])


def test_a_window_holds_positions_where_there_are_any() -> None:
    iterator = iterate(IterableWrapper([b"x" * 10_000] * 50).window_shuffle(20))
    next(iterator)
    assert len(encode(iterator.state_dict())) < 1000


@pytest.mark.parametrize("forge", [{"left": [1] * 9}, {"places": [99]}, {"key": ["x"]}, {"windows": -1}], ids=str)
def test_L8_forged_states_are_refused(forge: dict[str, Any]) -> None:
    sort = "left" in forge
    data = IterableWrapper([[n] for n in range(9)])
    node: Any = data.sort(4) if sort else data.window_shuffle(4)
    state = decode(encode(iterate(node).state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | forge)
