"""What counts as a plain tensor goes everywhere by its bytes, and what does not goes by torch's way."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from reading_services.hosting.shards import dump_items, load_items
from reading_services.processes.graph_image import GraphImage
from tests.processes.values import same
from torchpipe.state import decode, encode
from torchpipe.state.copying import copy_item
from torchpipe.state.kinds import KINDS
from torchpipe.state.tensors import bytes_of, is_plain, reduce_tensor


def in_graph(tensor: torch.Tensor) -> torch.Tensor:
    image = GraphImage.of(tensor)
    return image.load()[0]


def load_and_dump(tensor: torch.Tensor) -> torch.Tensor:
    return load_items(*dump_items([tensor]))[0]  # type: ignore[no-any-return]


ELSEWHERE: list[Callable[[torch.Tensor], torch.Tensor]] = [in_graph, load_and_dump]


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


def kept(tensor: torch.Tensor) -> torch.Tensor:
    return decode(encode(tensor))  # type: ignore[no-any-return]


LAID_OUT = {
    "channels last": torch.arange(480.0).reshape(2, 4, 6, 10).to(memory_format=torch.channels_last),
    "channels last, of one channel": torch.arange(60.0).reshape(1, 1, 6, 10).to(memory_format=torch.channels_last),
    "transposed": torch.arange(60).reshape(6, 10).T,
    "expanded": torch.arange(10).bool().expand(1000, 10),
    "expanded in the midst": torch.arange(20, dtype=torch.bfloat16).reshape(2, 1, 10).expand(2, 500, 10),
    "a scalar, expanded": torch.tensor(3.0).expand(100, 100),
    "windows": torch.arange(10).unfold(0, 5, 1),
}


@pytest.mark.parametrize("way", [*ELSEWHERE, kept, copy_item])
@pytest.mark.parametrize("name", LAID_OUT)
def test_strides_are_kept(way: Callable[[torch.Tensor], torch.Tensor], name: str) -> None:
    tensor = LAID_OUT[name]
    got = way(tensor)
    assert same(got, tensor)
    assert got.stride() == tensor.stride()
    assert got.untyped_storage().nbytes() <= tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("way", [load_and_dump, kept, copy_item])
def test_gaps_are_left_out_and_the_order_of_dimensions_is_kept(way: Callable[[torch.Tensor], torch.Tensor]) -> None:
    images = torch.arange(2 * 3 * 20 * 20.0).reshape(2, 3, 20, 20).to(memory_format=torch.channels_last)
    crop = images[:, :, 5:9, 5:9]
    got = way(crop)
    assert same(got, crop)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.untyped_storage().nbytes() == crop.numel() * 4
    few_of_many = torch.arange(1000)[::500].expand(2, 2)  # its memory is more than its values
    assert same(way(few_of_many), few_of_many)
    assert way(few_of_many).untyped_storage().nbytes() == few_of_many.numel() * 8


@pytest.mark.parametrize("name", [name for name in LAID_OUT if "bfloat16" not in str(LAID_OUT[name].dtype)])
def test_memory_without_gaps_is_sent_in_place(name: str) -> None:
    tensor = LAID_OUT[name].clone().as_strided(LAID_OUT[name].shape, LAID_OUT[name].stride())
    _, (buffer, *_) = reduce_tensor(tensor)
    assert np.frombuffer(buffer, np.uint8).ctypes.data == tensor.data_ptr()


@pytest.mark.parametrize("strides", [[4], [4, -1], [8, 1], [4, 1, 1], [2**63, 2**63], [4.0, 1], "41", None])
def test_strides_that_do_not_fit_are_refused(strides: object) -> None:
    take, make = KINDS[torch.Tensor].take, KINDS[torch.Tensor].make
    parts = [*take(torch.arange(12.0).reshape(3, 4).T.T), strides]
    parts[2] = bytes(parts[2])
    with pytest.raises((ValueError, TypeError)):
        make(parts)


def test_tensors_come_to_the_cpu_whatever_the_default_device() -> None:
    for tensor in (torch.empty(0, 4), torch.arange(3), LAID_OUT["channels last"]):
        for way in (load_and_dump, kept):
            with torch.device("meta"):
                got = way(tensor)
            assert got.is_cpu
