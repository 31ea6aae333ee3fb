"""``flatmap``: containers, iterators, randomness, files; exact within any of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node, freeze


def upto(item: int) -> list[int]:
    return list(range(item))


def count(item: int) -> Iterator[tuple[int, int]]:
    for number in range(item):
        yield item, number


def noisy(item: int) -> Iterator[Any]:
    """Draws before, and between, what it yields, from all three global states."""
    offset = random.random()
    for number in range(item):
        yield item, number, offset, random.random(), np.random.rand(), torch.rand(1)


def eager_noise(item: int) -> Iterator[float]:
    """A plain function that draws before it returns an iterator."""
    offset = random.random()
    return (number + offset for number in range(item))


def test_L2_exact_resume_after_containers() -> None:
    check_node(lambda: CountingSource([2, 0, 1, 3, 0]).flatmap(upto), pulls=lambda k: 2 * k + 1)


def test_L2_exact_resume_within_iterators() -> None:
    check_node(lambda: CountingSource([2, 0, 1, 3, 0]).flatmap(count), pulls=lambda k: 2 * k + 1)
    check_node(lambda: CountingSource([2, 3, 1]).shuffle().flatmap(count), pulls=lambda k: 3)
    check_node(lambda: CountingSource([2, 3]).flatmap(count).flatmap(lambda pair: iter(pair)), pulls=lambda k: k)


@pytest.mark.parametrize("fn", [noisy, eager_noise])
def test_L2_an_iterator_that_draws_global_random_numbers_draws_the_same_again(fn: Any) -> None:
    check_node(lambda: CountingSource([2, 0, 3, 2]).flatmap(fn), pulls=lambda k: 2 * k, global_random=True)


def test_L2_what_comes_after_a_resumed_iterator_draws_the_same_too() -> None:
    def mixed(item: int) -> Iterator[Any]:
        yield from range(item)

    check_node(
        lambda: (
            CountingSource([2, 3, 2])
            .map(lambda item: item + (random.random() < 0.5))
            .flatmap(mixed)
            .map(lambda item: (item, random.random()))
        ),
        pulls=lambda k: k,
        global_random=True,
    )


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 3))
def test_L2_functions_that_return_both_kinds(lengths: list[int], odd: int) -> None:
    """Within an iterator that follows a list no state can be taken; everywhere else it is exact."""

    def either(item: int) -> Any:
        return list(range(item)) if item % 2 == odd % 2 else iter(range(item))

    node = IterableWrapper(lengths).flatmap(either)
    expected = list(iterate(node))
    iterator = iterate(node)
    for position in range(len(expected) + 1):
        try:
            data = encode(iterator.state_dict())
        except StateError as error:
            assert "make the same of all items" in str(error)
        else:
            resumed = iterate(node)
            resumed.load_state_dict(decode(data))
            assert list(resumed) == expected[position:]
        assert next(iterator, None) == (expected + [None])[position]


class Numbered:
    """A function with state that returns iterators."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: int) -> Iterator[tuple[int, int]]:
        self.calls += 1
        return iter([(self.calls, number) for number in range(item)])

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def test_L2_a_function_with_state_is_called_again_in_the_state_it_had() -> None:
    check_node(lambda: CountingSource([2, 0, 3]).flatmap(Numbered()), pulls=lambda k: 2 * k)


def test_L2_open_files_as_items(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n{name}3\n")
    paths = [str(tmp_path / name) for name in "ab"]
    check_node(lambda: CountingSource(paths).open_files().flatmap(lambda pair: pair[1]))


def test_L5_an_endless_iterator_has_a_small_state() -> None:
    node = IterableWrapper([0]).flatmap(lambda item: itertools.count())
    iterator = iterate(node)
    iterator.drop(1000)
    data = encode(iterator.state_dict())
    assert len(data) < 20_000  # the global random states
    resumed = iterate(node)
    resumed.load_state_dict(decode(data))
    assert next(resumed) == 1000


@pytest.mark.parametrize(
    "result",
    [[1, 2], (1, 2), "ab", b"ab", range(2), {"a": 1}, {"a": 1}.items(), {3}, np.arange(4).reshape(2, 2), torch.eye(2)],
    ids=lambda value: type(value).__name__,
)
def test_any_container_will_do(result: Any) -> None:
    items = list(iterate(IterableWrapper([0]).flatmap(lambda item: result)))
    assert [freeze(item) for item in items] == [freeze(item) for item in result]
    check_node(lambda: CountingSource([0, 1]).flatmap(lambda item: result))


def test_the_old_sequence_protocol() -> None:
    class Two:
        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise IndexError
            return index

    assert list(IterableWrapper([0]).flatmap(lambda item: Two())) == [0, 1]


def test_columns_and_no_function() -> None:
    assert list(IterableWrapper([[1, 2], [3]]).flatmap()) == [1, 2, 3]
    assert list(IterableWrapper([(1, 2), (0, 3)]).flatmap(upto, 1)) == [0, 1, 0, 1, 2]
    assert list(IterableWrapper([(1, 2)]).flatmap(lambda a, b: [b, a], [0, 1])) == [2, 1]


def test_a_function_that_became_different_is_an_error() -> None:
    iterator = iterate(IterableWrapper([5]).flatmap(count))
    iterator.drop(4)
    resumed = iterate(IterableWrapper([2]).flatmap(count))
    resumed.load_state_dict(iterator.state_dict())
    with pytest.raises(StateError, match=r"FlatMapper\(count\) made only 2 parts of an item that had given 4"):
        next(resumed)


def test_nothing_iterable_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"needs something iterable, .*lambda.* returned None"):
        list(IterableWrapper([1]).flatmap(lambda item: None))


def test_its_length_is_not_known() -> None:
    with pytest.raises(TypeError):
        len(IterableWrapper([1]).flatmap(upto))


def test_columns_without_a_function_are_handed_out() -> None:
    rows = IterableWrapper([(1, [2, 3], "x"), (4, [5], "y")])
    assert list(rows.flatmap(input_col=(0, 2))) == [1, "x", 4, "y"]
    assert list(rows.flatmap(input_col=[0, 1])) == [1, [2, 3], 4, [5]]
    assert list(rows.flatmap(input_col=1)) == [2, 3, 5]
    assert list(rows.flatmap(input_col=[1])) == [2, 3, 5]
