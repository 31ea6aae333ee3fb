"""``bucket_by_length``, ``dynamic_batch``: each item once, within bounds, exactly resumed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node

WORDS = st.lists(st.integers(0, 9).flatmap(lambda n: st.sampled_from([c * n for c in "abc"])), max_size=20)


@given(WORDS, st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True).map(sorted), st.integers(1, 4))
def test_buckets_hold_lengths_between_their_bounds(words: list[str], bounds: list[int], size: int) -> None:
    batches = list(IterableWrapper(words).bucket_by_length(bounds, size))
    assert sorted(word for batch in batches for word in batch) == sorted(words)
    for batch in batches:
        assert len(batch) <= size
        assert len({sum(len(word) >= bound for bound in bounds) for word in batch}) == 1
    full = list(IterableWrapper(words).bucket_by_length(bounds, size, drop_last=True))
    assert full == [batch for batch in batches if len(batch) == size]


def test_each_bucket_may_have_a_size_of_its_own() -> None:
    node = IterableWrapper(["a", "bbbb", "c", "dddd", "e"]).bucket_by_length([2], [3, 1])
    assert list(node) == [["bbbb"], ["dddd"], ["a", "c", "e"]]


@given(WORDS, st.integers(9, 25), st.booleans(), st.one_of(st.none(), st.integers(1, 4)))
def test_dynamic_batches_are_as_large_as_their_cost_allows(
    words: list[str], most: int, padded: bool, items: int | None
) -> None:
    def cost(batch: list[str]) -> int:
        lengths = [len(word) for word in batch]
        return max(lengths) * len(lengths) if padded else sum(lengths)

    batches = list(IterableWrapper(words).dynamic_batch(most, padded=padded, max_items=items))
    assert [word for batch in batches for word in batch] == words
    for batch, following in zip(batches, [*batches[1:], None]):
        assert cost(batch) <= most
        assert len(batch) <= (items or 1000)
        if following is not None and len(batch) != items:
            assert cost([*batch, following[0]]) > most


def test_an_item_that_costs_too_much() -> None:
    node = IterableWrapper(["a", "b" * 9, "cc"])
    with pytest.raises(ValueError, match="length_of gives a cost of 9 for an item, more than max_cost=3"):
        list(node.dynamic_batch(3))
    assert list(node.dynamic_batch(3, overflow="drop")) == [["a", "cc"]]
    assert list(node.dynamic_batch(3, overflow="keep")) == [["a"], ["b" * 9], ["cc"]]
    assert list(node.dynamic_batch(1.5, lambda word: 0.5)) == [["a", "b" * 9, "cc"]]


WORDLIST = ["aaa", "b", "cccc", "dd", "", "eeeee", "ff", "g", "hhh", "ii"]


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(WORDLIST).bucket_by_length([2, 4], [2, 3, 2]), pulls=lambda k: 10, epochs=[0])
    check_node(lambda: CountingSource(WORDLIST).dynamic_batch(6), pulls=lambda k: 10, epochs=[0])
    check_node(lambda: CountingSource(range(9)).dynamic_batch(2, lambda n: 1, max_items=2), pulls=lambda k: 2 * k)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda node: list(node.bucket_by_length([2], 3)), TypeError, "an item of type int has no length"),
        (lambda node: list(node.dynamic_batch(3, lambda item: None)), ValueError, "the cost of an item must be"),
    ],
)
def test_what_is_no_length_or_cost_is_an_error(make: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        make(IterableWrapper([1]))


@pytest.mark.parametrize(
    ("make", "forge"),
    [
        (lambda node: node.bucket_by_length([2], 3), {"buckets": [[]]}),
        (lambda node: node.bucket_by_length([2], 3), {"buckets": [["a"] * 3, []]}),
        (lambda node: node.dynamic_batch(6), {"begun": [1]}),
        (lambda node: node.dynamic_batch(6), {"begun": ["x", "a"]}),
        (lambda node: node.dynamic_batch(6), {"begun": [float("nan"), "a"]}),
    ],
)
def test_L8_forged_states_are_refused(make: Any, forge: dict[str, Any]) -> None:
    node = make(IterableWrapper(WORDLIST))
    iterator = iterate(node)
    next(iterator)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | forge)
