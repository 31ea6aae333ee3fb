"""A chunk's items <-> bytes and buffers: what arrives is equal to what was sent, independent and writable.

How the buffers travel is for the tests of arena and layouts; here each arrives as a copy.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import pickle
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services.hosting.shards import OUT_OF_BAND_BYTES, dump_items, load_items
from tests.processes.values import DTYPES, bits, make, same, tensors

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def trip(*items: Any) -> list[Any]:
    data, buffers = dump_items(list(items))
    return load_items(memoryview(data), [bytearray(buffer) for buffer in buffers])


def size_of(*items: Any) -> int:
    """Bytes that are sent, in the pickle or out of band."""
    data, buffers = dump_items(list(items))
    return len(data) + sum(buffer.nbytes for buffer in buffers)


@given(st.lists(tensors(), min_size=1, max_size=4))
def test_tensors_of_every_kind(sent: list[torch.Tensor]) -> None:
    got = trip(*sent)
    assert all(same(*both) for both in zip(got, sent, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_every_dtype_can_be_written_to(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = make(dtype, shape, 1)
    before = bits(sent)
    (got,) = trip(sent)
    assert same(got, sent)
    got.zero_()
    assert bits(sent) == before  # and the one that was sent does not know of it
    assert not any(bits(got))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_takes_no_more_than_its_own_items(dtype: torch.dtype) -> None:
    assert size_of(make(dtype, (100_000,), 1)[:10]) < 2000
    large = make(dtype, (200_000,), 1)[: OUT_OF_BAND_BYTES + 1]
    assert size_of(large) < large.numel() * large.element_size() + 2000


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_item_or_none_of_a_view_with_steps(dtype: torch.dtype) -> None:
    """Their strides are not 1 though they count as contiguous: reinterpreting them as bytes failed."""
    for sent in (make(dtype, (2,), 1)[::2], make(dtype, (0,), 1)[::2], make(dtype, (2, 3), 1)[:1, :1]):
        assert size_of(sent) < 200  # not torch's own way, which also cannot do every dtype
        assert same(trip(sent)[0], sent)


def test_lazy_conjugates_and_negatives() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    for sent in (values.conj(), values.conj().imag, values.conj().conj(), torch.stack([values, values]).conj().T):
        (got,) = trip(sent)
        assert torch.equal(got, sent)


def test_gradients_and_parameters() -> None:
    leaf = torch.ones(2, requires_grad=True)
    parameter = torch.nn.Parameter(torch.arange(3.0))
    frozen = torch.nn.Parameter(torch.arange(3.0), requires_grad=False)
    for got, sent in zip(trip(leaf, parameter, frozen), (leaf, parameter, frozen), strict=True):
        assert same(got, sent)


def test_tensors_keep_what_was_attached_to_them() -> None:
    sent = torch.arange(3)
    sent.label = "cat"  # type: ignore[attr-defined]
    (got,) = trip(sent)
    assert same(got, sent)
    assert got.label == "cat"


class Tagged(torch.Tensor):
    """A subclass, which must not come back as a plain tensor."""


@pytest.mark.filterwarnings("ignore")  # torch's, of its own deprecated parts
def test_other_tensors() -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for sent in (dense.to_sparse(), dense.to_sparse_csr()):
        (got,) = trip(sent)
        assert got.layout is sent.layout
        assert torch.equal(got.to_dense(), dense)
    (tagged,) = trip(dense.as_subclass(Tagged))
    assert type(tagged) is Tagged
    assert torch.equal(tagged.as_subclass(torch.Tensor), dense)
    quantized = torch.quantize_per_tensor(dense, 0.5, 1, torch.qint8)
    assert torch.equal(trip(quantized)[0].dequantize(), quantized.dequantize())
    with torch.inference_mode():
        inference = torch.arange(3)
    assert torch.equal(trip(inference)[0], inference)


def test_an_object_twice_stays_one_object() -> None:
    tensor, array, values = torch.arange(3), np.arange(3), [1]
    got = trip((tensor, tensor), array, array, values, values)
    assert got[0][0] is got[0][1]
    assert got[1] is got[2]
    assert got[3] is got[4]
    got[0][0][0] = 9
    assert got[0][1][0] == 9


def test_an_item_that_contains_itself() -> None:
    sent: list[Any] = [torch.arange(2)]
    sent.append(sent)
    (got,) = trip(sent)
    assert got[1] is got
    assert torch.equal(got[0], sent[0])


# -- numpy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["?", "b", "H", "i8", ">i4", "f2", "f8", "c16", "S3", "U3", "M8[ns]", "m8[s]", "O"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_numpy_arrays(code: str, shape: tuple[int, ...]) -> None:
    sent = np.zeros(shape, dtype=code)
    for array in (sent, np.asfortranarray(sent), sent[..., ::2] if shape else sent):
        (got,) = trip(array)
        assert type(got) is np.ndarray
        assert got.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")  # numpy itself swaps what has gaps
        assert got.shape == array.shape
        assert (got == array).all()
        assert got.flags.writeable


def test_other_numpy_values() -> None:
    record = np.zeros(2, dtype=[("a", "i4"), ("b", "f8", (2,))])
    scalar, generator = np.float32(1.5), np.random.Generator(np.random.Philox(3))
    got = trip(record, scalar, np.ma.masked_array([1, 2], [True, False]), generator)
    assert got[0].dtype == record.dtype
    assert (got[0] == record).all()
    assert type(got[1]) is np.float32
    assert got[1] == scalar
    assert got[2].mask.tolist() == [True, False]
    assert got[3].random() == generator.random()


# -- everything else --------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    image: Any
    label: Any


class Colour(enum.Enum):
    RED = 1


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from([Colour.RED, Ellipsis, NotImplemented, StopIteration, int, len]),
    st.decimals(allow_nan=False),
    st.datetimes(),
)
CONTAINERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(collections.deque),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Sample, inner, inner),
        st.frozensets(st.integers(), max_size=1),
    ),
    max_leaves=8,
)


@given(st.lists(CONTAINERS, max_size=4))
def test_nested_containers(sent: list[Any]) -> None:
    got = trip(*sent)
    assert got == sent
    assert repr(got) == repr(sent)  # types and order, too


def test_tensors_deep_inside() -> None:
    sent = {"a": [Point(torch.arange(3), Sample(np.ones(2), (torch.tensor(1.5),)))]}
    (got,) = trip(sent)
    assert torch.equal(got["a"][0].x, torch.arange(3))
    assert (got["a"][0].y.image == np.ones(2)).all()
    assert got["a"][0].y.label[0] == 1.5


def test_classes_and_functions_made_inside_a_function() -> None:
    class Local:
        def __init__(self, value: Any) -> None:
            self.value = value

    factor = 3
    tensor = torch.arange(4).bfloat16()
    one, two, function = trip(Local(tensor), Local("text"), lambda number: factor * number)
    assert isinstance(one, Local)  # the very class: its origin is this process
    assert same(one.value, tensor)
    one.value.zero_()
    assert two.value == "text"
    assert function(4) == 12


def test_what_cannot_be_sent_raises() -> None:
    with open(__file__, "rb") as file:
        for item in (threading.Lock(), file, (number for number in range(3))):
            with pytest.raises((TypeError, pickle.PicklingError)):
                dump_items([1, {"deep": [item]}])


def test_an_open_text_file_is_no_item_and_does_not_become_what_it_holds() -> None:
    with open(__file__) as file:
        for item in (file, lambda: file.name):
            with pytest.raises(TypeError, match=r"cannot pickle the open file '.*test_items.py': read it where"):
                dump_items([{"deep": [item]}])
    assert trip(lambda: sys.stderr)[0]() is sys.stderr


def test_no_items() -> None:
    assert trip() == []
    assert trip(None, datetime.date(2020, 1, 1), decimal.Decimal("0.1")) == [
        None,
        datetime.date(2020, 1, 1),
        decimal.Decimal("0.1"),
    ]
