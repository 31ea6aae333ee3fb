"""Copies of items, and items that share what can be changed in place."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch

from torchpipe.state.copying import copy_item, separated

SHARED: Any = {"n": 1}
ARRAY = np.arange(9)
TENSOR = torch.arange(9)


@pytest.mark.parametrize(
    "items",
    [
        [SHARED, SHARED],
        [(0, SHARED), (1, SHARED)],
        [{"a": [SHARED]}, deque([SHARED])],
        [ARRAY[:3], ARRAY[2:5]],
        [TENSOR[:3], [TENSOR[3:]]],
        [ARRAY, {"view": ARRAY.reshape(3, 3)}],
    ],
)
def test_items_that_share_something_are_copied(items: list[Any]) -> None:
    before = repr(items)
    made = separated(items)
    assert repr(made) == before
    first, second = made
    assert first is not items[0]
    for part in (
        first,
        *(first.values() if isinstance(first, dict) else first if isinstance(first, list | tuple) else ()),
    ):
        if isinstance(part, dict):
            part["n"] = 2
        elif isinstance(part, list):
            part[0]["n"] = 2
        elif isinstance(part, np.ndarray | torch.Tensor):
            part += 1
    assert repr([items[0], second]) == before


def test_items_that_share_nothing_stay_the_same_objects() -> None:
    items = [{"a": [1]}, {"a": [1]}, np.zeros(3), torch.zeros(3), (1, "text"), (1, "text"), None, None]
    assert separated(items) is items
    plain: list[Any] = [1, 1, "a", "a"]
    assert separated(plain) is plain


def test_what_nobody_can_change_is_not_copied() -> None:
    table = pyarrow.table({"a": [1, 2]})
    assert copy_item(table) is table
