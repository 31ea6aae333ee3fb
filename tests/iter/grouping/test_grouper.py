"""``groupby`` and ``rows2columnar``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import DataChunk, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def third(item: int) -> int:
    return item % 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep_key": True, "group_size": 3},
        {"buffer_size": 4},
        {"buffer_size": 5, "group_size": 4, "guaranteed_group_size": 2},
        {"buffer_size": 3, "group_size": 3, "drop_remaining": True},
    ],
)
def test_L2_exact_resume(options: Any) -> None:
    check_node(lambda: CountingSource(range(17)).groupby(third, **options), pulls=lambda k: 17)


@given(st.lists(st.integers(0, 5)), st.integers(1, 5), st.integers(5, 9))
def test_nothing_is_lost_and_groups_are_of_one_key(items: list[int], group_size: int, buffer_size: int) -> None:
    node = IterableWrapper(items).groupby(
        third, group_size=group_size, guaranteed_group_size=1, buffer_size=buffer_size, keep_key=True
    )
    groups = list(node)
    assert sorted(item for _, group in groups for item in group) == sorted(items)
    assert all(type(group) is DataChunk and len(group) <= group_size for _, group in groups)
    assert all(third(item) == key for key, group in groups for item in group)


def test_groups() -> None:
    source = IterableWrapper(range(8))
    assert list(source.groupby(third)) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert list(source.groupby(third, group_size=2)) == [[0, 3], [1, 4], [2, 5], [6], [7]]
    full = IterableWrapper("aabcb").groupby(str, buffer_size=3, keep_key=True)
    assert list(full) == [("a", ["a", "a"]), ("b", ["b", "b"]), ("c", ["c"])]
    dropping = IterableWrapper("abcabca").groupby(str, buffer_size=3, group_size=3, drop_remaining=True)
    assert list(dropping) == [["c"], ["a"]]


def test_L7_a_group_that_is_too_small_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="Failed to group items: 3 are waiting.*has 1 of the 2"):
        list(IterableWrapper(range(9)).groupby(third, buffer_size=3, group_size=2))
    with pytest.raises(TypeError, match="unhashable") as caught:
        list(IterableWrapper([7]).groupby(lambda item: [item]))  # type: ignore[arg-type,return-value]
    assert "gives [7], which is no key" in str(caught.value)


def test_L8_forged_states_are_refused() -> None:
    node = IterableWrapper(range(9)).groupby(third, buffer_size=3)
    state = iterate(node).state_dict()
    for groups in ([[0, [1]], [0, [2]]], [[0, []]], [[0, [1, 2, 3, 4]]], 3, [[0]], [[[], [1]]], [[0, 1]]):
        with pytest.raises(StateError):
            iterate(node).load_state_dict(state | {"groups": groups})
