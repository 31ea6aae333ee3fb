"""What a ``SharedCopy`` gives is the value that went in, whatever the layout of its tensors."""

from __future__ import annotations

import pytest
import torch

from tests.processes.values import same
from torchpipe.xla.one_copy import SharedCopy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_item_keeps_a_stride_that_is_not_1(dtype: torch.dtype) -> None:
    single = torch.arange(3, 13).to(dtype)[::5][:1]
    assert same(SharedCopy(single).get(), single)


def test_a_nested_tensor_is_whole() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert [part.tolist() for part in SharedCopy(nested).get().unbind()] == [[1, 1], [1, 1, 1]]
