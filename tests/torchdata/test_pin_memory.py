"""``pin_memory``: what can be said of it without a GPU, and with one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper
from torchpipe.testing import check_node


def tensor(number: int) -> dict[str, Any]:
    return {"x": [torch.tensor([number])], "name": "n"}


def twice(data: Any, device: Any) -> Any:
    return data, device


def test_it_says_that_cuda_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="only be used when CUDA is available"):
        IterableWrapper([1]).pin_memory()


def test_L2_exact_resume_with_a_function_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_node(lambda: IterableWrapper(range(5)).pin_memory("cuda:3", twice))
    loader = DataLoader2(IterableWrapper(range(3)).sharding_filter().pin_memory("cuda:3", twice))
    assert list(loader) == [(0, "cuda:3"), (1, "cuda:3"), (2, "cuda:3")]
    assert "main section" in loader.explain()


@pytest.mark.cuda
def test_tensors_are_pinned() -> None:
    items = list(DataLoader2(IterableWrapper(range(4)).sharding_filter().map(tensor).pin_memory()))
    assert [item["x"][0].item() for item in items] == [0, 1, 2, 3]
    assert all(item["x"][0].is_pinned() and item["name"] == "n" for item in items)
