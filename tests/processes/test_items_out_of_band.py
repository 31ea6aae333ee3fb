"""Which data leaves the pickle of a chunk, in what form, and that it is read in place."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from reading_services.hosting.shards import OUT_OF_BAND_BYTES, dump_items, load_items
from tests.processes.values import bits, make, same


def trip(item: Any) -> Any:
    """What arrives, where every buffer is copied on its way."""
    data, buffers = dump_items([item])
    return load_items(data, [bytearray(buffer) for buffer in buffers])[0]


def large(kind: str) -> Any:
    """A value of just so many bytes that they do not go into the pickle."""
    count = OUT_OF_BAND_BYTES // 4
    makers: dict[str, Callable[[], Any]] = {
        "array": lambda: np.arange(count, dtype=np.float32),
        "fortran": lambda: np.asfortranarray(np.arange(2 * count, dtype=np.float32).reshape(2, count)),
        "tensor": lambda: torch.arange(count, dtype=torch.float32),
        "bfloat16": lambda: make(torch.bfloat16, (2 * count,), 1),
        "steps": lambda: torch.arange(2 * count, dtype=torch.float32)[::2],
        "transposed": lambda: torch.arange(2 * count, dtype=torch.float32).reshape(2, count).T,
        "bytearray": lambda: pickle.PickleBuffer(bytearray(4 * count)),
    }
    return makers[kind]()


LARGE = ["array", "fortran", "tensor", "bfloat16", "steps", "transposed", "bytearray"]


def content(value: Any) -> bytes:
    return bits(value) if isinstance(value, torch.Tensor) else np.asarray(value).tobytes()


@pytest.mark.parametrize("kind", LARGE)
def test_large_data_is_out_of_band_and_read_in_place(kind: str) -> None:
    sent = large(kind)
    before = content(sent)
    data, buffers = dump_items([{"deep": [sent]}])
    assert len(data) < 1000
    (sent_in_place,) = buffers
    assert sent_in_place.format == "B"
    assert sent_in_place.ndim == 1
    assert len(sent_in_place) == len(before) >= OUT_OF_BAND_BYTES
    lent = bytearray(sent_in_place)
    (item,) = load_items(memoryview(data), [memoryview(lent)])
    got = item["deep"][0]
    assert content(got) == before
    lent[:] = bytes(len(lent))
    assert not any(content(got))  # a view of what was lent, not a copy of it
    assert content(sent) == before


@pytest.mark.parametrize("kind", LARGE)
def test_large_data_can_be_written_to(kind: str) -> None:
    sent = large(kind)
    before = content(sent)
    got = trip(sent)
    if isinstance(got, torch.Tensor):
        got.zero_()
    else:
        np.asarray(got)[...] = 0
    assert not any(content(got))
    assert content(sent) == before


def test_one_byte_less_goes_into_the_pickle_and_is_private() -> None:
    sent = [np.zeros(OUT_OF_BAND_BYTES - 1, np.uint8), torch.zeros(OUT_OF_BAND_BYTES - 1, dtype=torch.uint8)]
    data, buffers = dump_items(sent)
    assert buffers == []
    before = bytes(data)
    one, two = load_items(data), load_items(data)
    for values in (one, two):
        for value in values:
            assert not value.any()  # whatever was written into the ones before
            value[...] = 9
    assert data == before


def test_buffers_come_in_the_order_of_the_items() -> None:
    sent = [torch.full((OUT_OF_BAND_BYTES,), number, dtype=torch.uint8) for number in range(5)]
    _, buffers = dump_items([sent[0], "small", {"deep": sent[1:3]}, np.ones(3), *sent[3:]])
    assert [buffer[0] for buffer in buffers] == [0, 1, 2, 3, 4]


def test_what_is_read_only_stays_so() -> None:
    sent = np.arange(2 * OUT_OF_BAND_BYTES, dtype=np.uint8)
    sent.flags.writeable = False
    data, buffers = dump_items([sent])
    assert buffers == []  # a slot of shared memory could be written to
    (got,) = load_items(memoryview(data))
    assert (got == sent).all()
    assert not got.flags.writeable


def test_a_large_object_twice_is_sent_once() -> None:
    tensor, array = large("tensor"), large("array")
    data, buffers = dump_items([(tensor, tensor), array, array])
    assert len(buffers) == 2
    got = load_items(data, [bytearray(buffer) for buffer in buffers])
    assert got[0][0] is got[0][1]
    assert got[1] is got[2]


def test_large_data_in_what_only_cloudpickle_can_send() -> None:
    class Local:
        def __init__(self, value: Any) -> None:
            self.value = value

    sent = large("tensor")
    got = trip(Local(sent))
    assert same(got.value, sent)
    got.value.zero_()
    assert sent.any()
