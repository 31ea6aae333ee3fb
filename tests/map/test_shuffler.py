"""``shuffle`` of map-style nodes: every key once, in an order of the pass's own; nothing is read that is not kept."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.indexed import shuffled
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.randomness.seeds import ComputedOrder, permutation
from torchpipe.state import encode
from torchpipe.testing import check_node


def numbers(length: int) -> Any:
    return SequenceWrapper(range(length))


def test_L2_exact_resume() -> None:
    check_node(lambda: numbers(12).shuffle())
    check_node(lambda: numbers(12).shuffle(computed=True).sharding_filter())
    check_node(lambda: numbers(12).map(str).shuffle().sharding_filter())
    check_node(lambda: SequenceWrapper({"a": 1, "b": 2, "c": 3}).shuffle(indices=["a", "b", "c"]).cycle(2))


@given(st.integers(0, 40), st.integers(0, 5), st.integers(0, 5))
def test_L1_a_permutation_fixed_by_seed_and_epoch(length: int, seed: int, epoch: int) -> None:
    node = numbers(length).shuffle()
    items = list(iterate(node, seed=seed, epoch=epoch))
    assert sorted(items) == list(range(length))
    assert items == list(iterate(node, seed=seed, epoch=epoch))
    if length >= 20:
        assert items != list(iterate(node, seed=seed + 1, epoch=epoch))
        assert items != list(iterate(node, seed=seed, epoch=epoch + 1))


class Broken:
    """Every other item cannot be read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index % 2:
            raise ValueError(f"item {index} is broken")
        return index


@pytest.mark.parametrize(
    "behind", [lambda node: node, lambda node: node.sharding_filter(), lambda node: node.shuffle()]
)
def test_L5_the_order_is_made_once_however_many_items_are_left_out(
    behind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def noting(key: Any, length: int) -> Any:
        made.append(length)
        return permutation(key, length)

    monkeypatch.setattr(shuffled, "permutation", noting)
    node = behind(SequenceWrapper(Broken(), deepcopy=False).shuffle()).on_error("skip", budget=None)
    assert sorted(iterate(node)) == list(range(0, 40, 2))
    assert made == [40]


def test_the_order_stays_what_it_is() -> None:
    assert list(iterate(numbers(8).shuffle(), seed=1)) == [3, 5, 1, 4, 2, 6, 0, 7]


@given(st.integers(0, 5000), st.integers(0, 5))
def test_L1_a_computed_order_is_a_permutation_too(length: int, seed: int) -> None:
    items = list(iterate(numbers(length).shuffle(computed=True), seed=seed))
    assert sorted(items) == list(range(length))
    if length >= 20:
        assert items != sorted(items)
        assert items != list(iterate(numbers(length).shuffle(computed=True), seed=seed, epoch=1))


def test_a_computed_order_stays_what_it_is() -> None:
    assert list(ComputedOrder((1, 2), 8)) == [0, 7, 4, 1, 5, 2, 3, 6]
    assert list(ComputedOrder((1, 2), 1 << 40)[(1 << 40) - 2 :]) == [222707902944, 100601627604]


def test_computed_orders_are_spread_evenly() -> None:
    """Each item at each place alike often, over many keys; no place near its neighbour's, in a long one."""
    length, keys = 50, 800
    counts = np.zeros((length, length))
    for key in range(keys):
        counts[np.arange(length), list(ComputedOrder((key,), length))] += 1
    expected = keys / length
    spread = ((counts - expected) ** 2 / expected).sum() / (length - 1) ** 2
    assert 0.9 < spread < 1.1  # chi-square by its degrees of freedom, 2401 of them: 0.03 is a standard deviation
    order = np.array(ComputedOrder((3,), 1 << 14)[:], dtype=float)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.04  # five standard deviations
    assert abs((np.diff(order) > 0).mean() - 0.5) < 0.02


def test_L5_many_items_take_no_memory_and_resume_at_once() -> None:
    node = numbers(1 << 40).shuffle()
    iterator = iterate(node)
    first = [next(iterator) for _ in range(3)]
    assert len(set(first)) == 3
    state = iterator.state_dict()
    far = iterate(node)
    far.load_state_dict(state | {"position": (1 << 40) - 2})
    assert len(list(far)) == 2
    with pytest.raises(StateError, match="computed=True, here it is False"):
        iterate(numbers(20).shuffle()).load_state_dict(state)
    with pytest.raises(IndexError):
        ComputedOrder((1,), 5)[5]


def test_every_order_has_the_same_chance() -> None:
    node = numbers(3).shuffle()
    counts = Counter(tuple(iterate(node, epoch=epoch)) for epoch in range(3000))
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())  # 500 each; five standard deviations


def test_keys_and_length() -> None:
    node = SequenceWrapper({"a": 1, "b": 2, "c": 3}).shuffle(indices=["c", "a"])
    assert len(node) == 2
    assert sorted(node) == [1, 3]
    assert len(numbers(5).shuffle().sharding_filter()) == 5
    assert list(numbers(0).shuffle()) == []


def test_switching_it_off() -> None:
    node = numbers(20).shuffle()
    assert list(DataLoader2(numbers(20).shuffle().set_shuffle(False))) == list(range(20))
    state = iterate(node).state_dict()
    off = numbers(20).shuffle().set_shuffle(False)
    with pytest.raises(StateError, match="saved with shuffling on"):
        iterate(off).load_state_dict(state)
    assert list(numbers(20).shuffle().set_seed(3)) == list(numbers(20).shuffle().set_seed(3))
    told = numbers(20).shuffle().set_seed(3)  # as torch's loaders tell one: a loader of ours has its own
    assert list(iterate(told, seed=1)) == list(iterate(numbers(20).shuffle(), seed=1)) != list(iterate(told, seed=2))


def test_L5_the_state_is_small_and_any_position_is_reached_at_once() -> None:
    class Unread:
        def __len__(self) -> int:
            return 10**5

        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    read: list[int] = []
    graph = SequenceWrapper(Unread()).shuffle()
    iterator = iterate(graph, seed=1)
    iterator.load_state_dict(iterate(graph, seed=1).state_dict() | {"position": 10**5 - 2})
    assert len(list(iterator)) == len(read) == 2
    assert len(encode(iterator.state_dict())) < 100


def test_data_that_became_shorter_is_an_error() -> None:
    iterator = iterate(numbers(5).shuffle())
    iterator.drop(5)
    with pytest.raises(StateError, match="there are only 4 to read"):
        iterate(numbers(4).shuffle()).load_state_dict(iterator.state_dict())
