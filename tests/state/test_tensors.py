"""What counts as a plain tensor goes everywhere by its bytes, and what does not goes by torch's way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from reading_services._transport.graph_image import GraphImage
from reading_services._transport.items import dump_items, load_items
from tests.runtime.values import same
from torchpipe.state import decode, encode
from torchpipe.state.tensors import bytes_of, is_plain
from torchpipe.xla.spawn import SharedCopy


def in_graph(tensor: torch.Tensor) -> torch.Tensor:
    image = GraphImage.of(tensor)
    return image.load()[0]


ELSEWHERE: list[Callable[[torch.Tensor], torch.Tensor]] = [
    in_graph,
    lambda tensor: SharedCopy(tensor).get(),
    lambda tensor: load_items(*dump_items([tensor]))[0],
]


@pytest.mark.parametrize("way", [*ELSEWHERE, lambda tensor: decode(encode(tensor))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_item_keeps_a_stride_that_is_not_1(
    way: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    single = torch.arange(3, 13).to(dtype)[::5][:1]
    assert single.is_contiguous()
    assert same(way(single), single)


@pytest.mark.parametrize("way", ELSEWHERE)
def test_a_nested_tensor_is_not_plain(way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert not is_plain(nested)
    assert [part.tolist() for part in way(nested).unbind()] == [[1, 1], [1, 1, 1]]


def test_values_that_are_still_to_be_conjugated_or_negated_are_not_plain() -> None:
    lazy = torch.tensor([1 + 2j]).conj()
    assert not is_plain(lazy)
    assert not is_plain(lazy.imag)
    assert is_plain(lazy.resolve_conj())


def test_bytes_are_read_in_place_where_that_is_possible() -> None:
    tensor = torch.zeros(3)
    bytes_of(tensor)[...] = 1
    assert tensor.tolist() == [1, 1, 1]
