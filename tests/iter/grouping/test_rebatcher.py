"""``rebatch``: batches of one size, whatever they are made of and however they came."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.errors import StateError
from torchpipe.iter import DataChunk, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node, freeze

Pair = namedtuple("Pair", "x y")


def batches(kind: str, lengths: list[int]) -> list[Any]:
    ends = np.cumsum([0, *lengths])
    made = []
    for begin, length in zip(ends, lengths):
        rows = np.arange(begin, begin + length)
        tensor = torch.from_numpy(np.stack([rows, -rows], 1))
        made.append(
            {
                "list": rows.tolist(),
                "chunk": DataChunk(rows.tolist()),
                "array": rows,
                "tensor": tensor,
                "dict": {"x": tensor, "deep": {"y": rows, "name": [str(row) for row in rows]}},
                "tuple": (tensor, rows.tolist()),
                "named": Pair(tensor, rows),
                "collated": [tensor, rows.tolist()],
            }[kind]
        )
    return made


KINDS = ["list", "chunk", "array", "tensor", "dict", "tuple", "named", "collated"]


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 7), max_size=8), st.integers(1, 6))
def test_rows_stay_as_they_are_and_in_order(kind: str, lengths: list[int], size: int) -> None:
    total = sum(lengths)
    sizes = [size] * (total // size) + ([total % size] if total % size else [])
    node = IterableWrapper(batches(kind, lengths)).rebatch(size, collated=kind == "collated")
    assert list(map(freeze, node)) == list(map(freeze, batches(kind, sizes)))
    full = IterableWrapper(batches(kind, lengths)).rebatch(size, drop_last=True, collated=kind == "collated")
    assert list(map(freeze, full)) == list(map(freeze, batches(kind, [size] * (total // size))))


@pytest.mark.parametrize("kind", ["chunk", "dict"])
def test_L2_exact_resume(kind: str) -> None:
    lengths = [3, 1, 0, 9, 2, 2]
    check_node(lambda: CountingSource(batches(kind, lengths)).rebatch(4), pulls=lambda k: 6, epochs=[0])


def test_no_more_is_pulled_than_a_batch_needs() -> None:
    node = CountingSource(batches("tensor", [2] * 9))
    iterator = iterate(node.rebatch(3))
    next(iterator)
    assert node.pulls.total == 2
    next(iterator)
    assert node.pulls.total == 3


@pytest.mark.parametrize(
    ("items", "kind", "message"),
    [
        ([3], TypeError, "rebatch needs batches, got 3 of type int"),
        ([None], TypeError, "got None"),
        (["text"], TypeError, "got 'text' of type str"),
        ([torch.tensor(1)], TypeError, "which has no rows"),
        ([{}], TypeError, "which has no rows"),
        ([{"x": torch.ones(2), "y": torch.ones(3)}], ValueError, "have 2 and 3 rows"),
        ([(torch.ones(2), None)], ValueError, "have 2 and None rows"),
        ([torch.ones(2), np.ones(2)], TypeError, "not alike: Tensor and ndarray"),
        ([{"x": torch.ones(2)}, {"y": torch.ones(2)}], KeyError, "x"),
        ([{"x": torch.ones(2)}, {"x": torch.ones(2), "y": torch.ones(2)}], TypeError, "not alike"),
    ],
)
def test_what_is_no_batch_is_an_error(items: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        list(IterableWrapper(items).rebatch(3))


@pytest.mark.parametrize("parts", [[3], [[]], ["x"], [[1], {"a": [1]}], 5])
def test_L8_forged_states_are_refused(parts: Any) -> None:
    node = IterableWrapper(batches("list", [5, 5])).rebatch(3)
    iterator = iterate(node)
    next(iterator)
    state = decode(encode(iterator.state_dict()))
    with pytest.raises(StateError):
        iterate(node).load_state_dict(state | {"parts": parts})


def test_L8_what_is_left_over_in_a_state_is_like_the_batches_that_follow() -> None:
    node = IterableWrapper(batches("list", [5, 5])).rebatch(3)
    iterator = iterate(node)
    next(iterator)
    resumed = iterate(node)
    resumed.load_state_dict(decode(encode(iterator.state_dict())) | {"parts": [torch.ones(2)]})
    with pytest.raises(StateError, match="not alike"):
        next(resumed)


_TYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"x": x}, lambda x: (x, [0, 0])], ids=["bare", "dict", "tuple"]
)
def test_numbers_of_several_types_are_not_joined(tensors: bool, wrap: Any) -> None:
    for one in _TYPES:
        for other in _TYPES:
            made = [np.ones(2, dtype) for dtype in (one, other)]
            node = IterableWrapper([wrap(torch.from_numpy(array) if tensors else array) for array in made]).rebatch(3)
            if one == other:
                assert len(list(node)) == 2
            else:
                with pytest.raises(TypeError, match="not alike: arrays of .* Give them one type before"):
                    list(node)


def test_texts_of_several_lengths_are_joined_and_types_may_change_between_batches() -> None:
    texts = IterableWrapper([np.array(["a", "bb"]), np.array(["ccc", "d"])]).rebatch(4)
    assert [batch.tolist() for batch in texts] == [["a", "bb", "ccc", "d"]]
    whole = IterableWrapper([np.array([2**24 + 1, 0]), np.array([0.5, 1.0], np.float32)]).rebatch(2)
    assert [batch.tolist() for batch in whole] == [[2**24 + 1, 0], [0.5, 1.0]]


def test_L2_a_part_of_another_type_in_a_state_is_refused() -> None:
    iterator = iterate(IterableWrapper([torch.arange(2)] * 3).rebatch(3))
    next(iterator)
    state = decode(encode(iterator.state_dict()))
    resumed = iterate(IterableWrapper([torch.arange(2.0)] * 3).rebatch(3))
    with pytest.raises(StateError, match="not alike|differ"):
        resumed.load_state_dict(state)
        next(resumed)
