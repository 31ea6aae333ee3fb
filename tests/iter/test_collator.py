"""``collate``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node


def total(batch: list[int]) -> int:
    return sum(batch)


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(7)).batch(2).collate(), pulls=lambda k: 2 * k)
    check_node(lambda: CountingSource(range(7)).batch(2).collate(collate_fn=total), pulls=lambda k: 2 * k)


def test_the_default_stacks_into_tensors() -> None:
    batch: Any = next(iter(IterableWrapper([{"a": 1, "b": torch.zeros(2)}] * 3).batch(3).collate()))
    assert batch["a"].tolist() == [1, 1, 1]
    assert batch["b"].shape == (3, 2)


def test_a_function_in_either_place() -> None:
    node = IterableWrapper(range(4)).batch(2)
    assert list(node.collate(total)) == list(node.collate(collate_fn=total)) == [1, 5]
    assert len(node.collate()) == 2


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"conversion must be a function, got \{\}"):
        IterableWrapper([1]).collate({})
    with pytest.raises(ValueError, match="positional"):
        IterableWrapper([1]).collate(collate_fn=lambda a, b: a)
