"""States are data: what goes in comes out, bit for bit, and nothing in the bytes is ever run."""

from __future__ import annotations

import gzip
import itertools
import lzma
import math
import os
import pickle
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.laws.interrupts import Alarm, Interrupter, Late
from tests.state.forging import sealed, tagged
from torchpipe.errors import StateError, UnsafeStateError
from torchpipe.formats.storage.content import Content
from torchpipe.iter import DataChunk
from torchpipe.state import FORMAT_VERSION, Cursor, OpaqueItem, decode, encode
from torchpipe.testing import freeze

TORCH_DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.uint16,
]
SHAPES = [(), (0,), (3,), (2, 0, 3), (2, 3)]

arrays = hnp.arrays(
    st.one_of(
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(),
        hnp.complex_number_dtypes(),
        hnp.boolean_dtypes(),
        hnp.datetime64_dtypes(),
        hnp.unicode_string_dtypes(),
        hnp.byte_string_dtypes(),
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), arrays
)
hashables = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text())
)
values = st.recursive(
    st.one_of(atoms, st.sets(hashables), st.frozensets(hashables), st.binary().map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(hashables, inner), st.lists(inner).map(DataChunk)
    ),
    max_leaves=12,
)


@given(values)
def test_plain_data_comes_back_exactly(value: Any) -> None:
    data = encode(value)
    assert isinstance(data, bytes)
    assert freeze(decode(data)) == freeze(value)
    assert encode(decode(data)) == data or any_set(value)


def any_set(value: Any) -> bool:
    return "{" in repr(value)  # sets and their order


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tensors(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    raw = torch.randint(0, 2, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8)
    tensor = (raw.view(dtype) if raw.numel() else torch.empty(0, dtype=dtype)).reshape(shape)
    restored = decode(encode(tensor))
    assert freeze(restored) == freeze(tensor)
    assert restored.is_contiguous()


def test_tensors_that_are_views_or_hold_nan() -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in (base.permute(2, 0, 1), base[:, ::2], base[1, 1, 1], base[:, :0], torch.tensor([math.nan, -0.0])):
        assert freeze(decode(encode(tensor))) == freeze(tensor)
    assert len(encode(torch.zeros(1000, 1000)[0, :2])) < 100  # not the memory that the view looks into


def test_arrays_of_any_order_and_byte_order() -> None:
    base = np.arange(6, dtype=">i4").reshape(2, 3)
    for array in (base, base.T, np.asfortranarray(base), base[::-1, ::2], np.array(5), np.zeros((0, 2))):
        assert freeze(decode(encode(array))) == freeze(array)


@pytest.mark.parametrize(
    "scalar",
    [np.float32(1.5), np.float64("nan"), np.int8(-3), np.bool_(True), np.str_("a\u00e4"), np.datetime64("2020-01-01")],
    ids=repr,
)
def test_numpy_scalars_keep_their_type(scalar: Any) -> None:
    assert freeze(decode(encode(scalar))) == freeze(scalar)


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40)])
def test_integers_of_any_size(number: int) -> None:
    assert decode(encode(number)) == number


def test_file_names_that_are_not_utf8() -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    assert decode(encode([name])) == [name]


def test_the_copy_is_independent() -> None:
    value = {"a": [1], "t": torch.zeros(2), "n": np.zeros(2)}
    data = encode(value)
    restored = decode(data)
    restored["t"] += 1  # writable, and not the bytes themselves
    restored["n"] += 1
    restored["a"].append(2)
    value["a"].clear()
    assert decode(data)["a"] == [1]
    assert decode(data)["t"].sum() == decode(data)["n"].sum() == 0


class Item:
    """An ordinary class."""

    def __init__(self, x: int = 1) -> None:
        self.x = x


OPAQUE: list[Any] = [
    Item(),
    np.ma.array([1, 2], mask=[True, False]),
    torch.zeros(2, 2).to_sparse(),
    ValueError("x"),
    StopIteration(1),
    int,
    lambda: 3,
]


@pytest.mark.parametrize("value", OPAQUE, ids=lambda value: type(value).__name__)
def test_L8_other_objects_need_allow_pickle(value: Any) -> None:
    data = encode({"buffer": [1, value]})
    with pytest.raises(UnsafeStateError, match="allow_pickle=True"):
        decode(data)
    restored = decode(data, allow_pickle=True)["buffer"][1]
    assert type(restored) is type(value)
    shown = decode(data, keep_opaque=True)["buffer"][1]
    assert isinstance(shown, OpaqueItem)
    assert type(value).__qualname__ in repr(shown)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_L8_nothing_is_run_without_allow_pickle(tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    data = encode([{"deep": (Bomb(fuse),)}])
    with pytest.raises(UnsafeStateError, match="Bomb"):
        decode(data)
    decode(data, keep_opaque=True)
    assert not fuse.exists()
    decode(data, allow_pickle=True)
    assert fuse.exists()


def test_L8_a_pickle_in_place_of_a_state_is_not_run(tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    raw = pickle.dumps(Bomb(fuse))
    for data in (raw, b"TPS" + bytes([FORMAT_VERSION]) + raw, sealed(raw)):
        with pytest.raises(StateError):
            decode(data, allow_pickle=True)
    assert not fuse.exists()


def test_arrays_of_objects_keep_the_types_of_what_is_in_them() -> None:
    array = np.empty(3, dtype=object)
    array[0], array[1], array[2] = bytearray(b"ab"), [bytearray(b"c")], b"d"
    back = decode(encode(array))
    assert [type(each) for each in back] == [bytearray, list, bytes]
    assert list(back) == list(array)
    array[0] = memoryview(b"xy")
    with pytest.raises(StateError, match="memoryview"):
        encode(array)


def test_L8_arrays_of_objects_cannot_be_smuggled_in() -> None:
    for parts in (
        (6, "|O", [1], b"\0" * 8),
        (6, None, [2], 1),  # an array of two objects with one
        (6, None, [1 << 40]),
        (6, [["a", "|O"]], [1], b"\0" * 8),
        (6, "<U1", [1], b"\xff" * 4),  # no character
        (7, "|O", b"\0" * 8),
        (5, "load", [1], b"\0" * 8, False),  # torch.load is no dtype
        (5, "qint8", [1], b"\0", False),
        (5, "float32", [2**50], b"", False),
        (5, "float32", [3], b"\0" * 8, False),
        (5, "float32", [-1], b"\0" * 8, False),
        (5, "int64", [1], b"\0" * 8, True),  # integers have no gradient
        (99, 1),
    ):
        with pytest.raises(StateError, match="damaged"):
            decode(sealed(tagged(*parts)), allow_pickle=True)


@given(st.binary(max_size=60))
def test_garbage_is_a_state_error(data: bytes) -> None:
    for candidate in (data, b"TPS" + data, b"TPS" + bytes([FORMAT_VERSION]) + data):
        try:
            decode(candidate)
        except StateError:
            pass


@given(values, st.data())
def test_cut_off_bytes_are_a_state_error(value: Any, data: st.DataObject) -> None:
    whole = encode(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(StateError):
        decode(whole[:cut])
    with pytest.raises(StateError):
        decode(whole + b"x")


def test_wrong_versions_and_types_are_refused_by_name() -> None:
    data = encode(1)
    with pytest.raises(StateError, match=rf"format version 9, this torchpipe reads version {FORMAT_VERSION}"):
        decode(data[:3] + bytes([9]) + data[4:])
    with pytest.raises(StateError, match="a state must be bytes, got dict"):
        decode({})
    with pytest.raises(StateError, match="not a torchpipe state: it begins with b'hello'"):
        decode(b"hello")
    assert decode(memoryview(data)) == decode(bytearray(data)) == 1


def test_what_cannot_be_saved_is_a_state_error_with_advice(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(2000):
        nested = [nested]
    with (tmp_path / "file").open("wb") as file:
        for value in (file, nested, (number for number in range(3))):
            with pytest.raises(StateError, match="cannot be saved .* Buffer plain data instead"):
                encode([value])


def test_L8_torch_reads_encoded_states_with_weights_only(tmp_path: Path) -> None:
    torch.save({"payload": encode(OPAQUE[0])}, tmp_path / "checkpoint.pt")
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["payload"] == encode(OPAQUE[0])


@pytest.mark.parametrize("kind", [Alarm, Late])
def test_what_a_signal_s_handler_raises_is_no_damage(kind: type[Exception], tmp_path: Path) -> None:
    data = encode({"a": [1, (2, 3), np.arange(4)], "cursor": Cursor(encode([1]), 1, 2), "date": date(2020, 1, 2)})
    for ending, opened in (("gz", gzip.open), ("xz", lzma.open)):
        with opened(tmp_path / f"a.{ending}", "wb") as file:
            file.write(b"text" * 1000)
    works: list[Callable[[], Any]] = [
        lambda: encode(decode(data)),
        *(lambda path=path: Content(str(path)).stream.read() for path in tmp_path.iterdir()),  # type: ignore[misc]
    ]
    for work in works:
        for number in itertools.count(1):
            interrupter = Interrupter(number, ("torchpipe.state", "torchpipe.formats"), kind)
            try:
                with interrupter:
                    work()
            except kind:
                continue
            break
        assert number > 5
