"""``shuffle``: a function of the pass, a bounded buffer, every order possible."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import encode
from torchpipe.testing import CountingSource, check_node


@pytest.mark.parametrize("buffer_size", [1, 4, 12, 100])
def test_L2_exact_resume(buffer_size: int) -> None:
    check_node(
        lambda: CountingSource(range(12)).shuffle(buffer_size=buffer_size), pulls=lambda k: min(12, k - 1 + buffer_size)
    )


def test_L2_exact_resume_of_a_buffer_of_batches_needs_no_pickle() -> None:
    check_node(lambda: CountingSource(range(12)).batch(2).shuffle(buffer_size=3), pulls=lambda k: 2 * k + 4)


def test_L2_exact_resume_of_two_in_a_row_after_sharding() -> None:
    check_node(
        lambda: CountingSource(range(12)).shuffle(buffer_size=4).sharding_filter().shuffle(buffer_size=3),
        pulls=lambda k: 12,
    )


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 5), st.integers(0, 5))
def test_L1_a_permutation_fixed_by_seed_and_epoch(length: int, buffer_size: int, seed: int, epoch: int) -> None:
    node = IterableWrapper(range(length)).shuffle(buffer_size=buffer_size)
    items = list(iterate(node, seed=seed, epoch=epoch))
    assert sorted(items) == list(range(length))
    assert items == list(iterate(node, seed=seed, epoch=epoch))
    if length >= 20 and buffer_size >= 20:
        assert items != list(iterate(node, seed=seed + 1, epoch=epoch))
        assert items != list(iterate(node, seed=seed, epoch=epoch + 1))


def test_an_item_comes_at_most_the_buffer_too_early() -> None:
    items = list(iterate(IterableWrapper(range(100)).shuffle(buffer_size=10)))
    assert all(item <= place + 9 for place, item in enumerate(items))


def test_every_order_has_the_same_chance() -> None:
    node = IterableWrapper(range(3)).shuffle()
    counts = Counter(tuple(iterate(node, epoch=epoch)) for epoch in range(3000))
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())  # 500 each; five standard deviations


def test_an_unseeded_pass_differs_each_time() -> None:
    node = IterableWrapper(range(50)).shuffle()
    assert list(node) != list(node)


def test_shards_shuffle_alike_before_the_division_and_apart_after_it() -> None:
    before = IterableWrapper(range(40)).shuffle().sharding_filter()
    shares = [list(iterate(before, shard=shard, num_shards=2)) for shard in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(40))
    after = IterableWrapper([item // 2 for item in range(40)]).sharding_filter().shuffle()
    orders = [list(iterate(after, shard=shard, num_shards=2)) for shard in range(2)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]


def test_two_shuffles_in_a_graph_differ() -> None:
    one, other = IterableWrapper(range(30)).shuffle(), IterableWrapper(range(30)).shuffle()
    pairs = list(iterate(one.zip(other)))
    assert [pair[0] for pair in pairs] != [pair[1] for pair in pairs]


def test_L5_the_state_is_bounded_by_the_buffer() -> None:
    iterator = iterate(IterableWrapper(range(100_000)).shuffle(buffer_size=8))
    sizes = set()
    for _ in range(50):
        iterator.drop(1000)
        sizes.add(len(encode(iterator.state_dict())))
    assert max(sizes) < 400


def test_unbatch_level() -> None:
    node = IterableWrapper([[0, 1], [2], [3]]).shuffle(unbatch_level=1)
    assert sorted(iterate(node)) == [0, 1, 2, 3]
    check_node(lambda: CountingSource([[0, 1], [2], [3]]).shuffle(buffer_size=2, unbatch_level=1), pulls=lambda k: 3)


def test_the_methods_that_torchs_loaders_call() -> None:
    node: Any = IterableWrapper(range(30)).shuffle()
    assert list(node.set_shuffle(False)) == list(range(30))
    check_node(lambda: CountingSource(range(6)).shuffle().set_shuffle(False))
    order = list(node.set_shuffle(True).set_seed(7))
    assert order == list(node) != list(range(30))  # the seed stays until another is set
    assert list(node.set_seed(8)) != order
    assert list(iterate(node, epoch=1)) != list(iterate(node, epoch=0))


def test_a_state_saved_with_the_shuffle_switched_off_is_refused() -> None:
    node: Any = IterableWrapper(range(5)).shuffle()
    state = iterate(node).state_dict()
    with pytest.raises(StateError, match="shuffling on"):
        iterate(IterableWrapper(range(5)).shuffle().set_shuffle(False)).load_state_dict(state)
