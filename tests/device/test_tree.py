"""Replacing tensors keeps every container's type, and touches nothing else."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import OrderedDict, UserDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.datapipe import DataChunk
from torchpipe.device.tree import path_of, replace_arrays, replace_tensors, tensors_in


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Plain:
    x: Any
    label: str = "a"


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    label: str = "a"


@dataclasses.dataclass(slots=True)
class Slots:
    x: Any
    double: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.double = self.x * 2


class Extended(Slots):
    extra: Any = None


class Tuple(tuple[Any, ...]):
    __slots__ = ()


def negate(batch: Any) -> Any:
    return replace_tensors(batch, lambda tensors: [-tensor for tensor in tensors])


ONE = torch.ones(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: [x, 1, "a", None],
        lambda x: (x, 2.5),
        lambda x: Pair(x, 3),
        lambda x: Tuple([x, 3]),
        lambda x: {"x": x, 1: "b"},
        lambda x: OrderedDict(x=x, y=1),
        lambda x: defaultdict(list, x=x),
        lambda x: UserDict(x=x),
        lambda x: DataChunk([x, 1]),
        lambda x: Plain(x, "b"),
        lambda x: Frozen(x, "b"),
        lambda x: [{"deep": (Pair([x], {"y": Frozen(x)}),)}],
    ],
)
def test_types_and_other_values_are_kept(make: Any) -> None:
    batch, expected = make(ONE), make(-ONE)
    moved = negate(batch)
    assert type(moved) is type(batch)
    assert repr(moved) == repr(expected)
    assert repr(batch) == repr(make(ONE))  # the batch itself is unchanged


def test_a_default_factory_and_a_chunks_items_are_kept() -> None:
    assert negate(defaultdict(list, x=ONE))["missing"] == []
    chunk = negate(DataChunk([ONE]))
    assert torch.equal(chunk.items[0], -ONE)


def test_a_dataclass_is_not_made_anew() -> None:
    batch = Extended(torch.ones(2))
    batch.extra = "an attribute that is no field"
    moved = negate(batch)
    assert type(moved) is Extended
    assert torch.equal(moved.double, torch.full((2,), -2.0))  # __post_init__ would have made it -2 * 2
    assert moved.extra == "an attribute that is no field"


def test_what_holds_no_tensor_is_the_same_object() -> None:
    inner = {"name": ["a", (1, 2)], "array": np.ones(2)}
    assert negate(inner) is inner
    moved = negate([inner, ONE])
    assert moved[0] is inner
    for value in (None, 1, "text", b"raw", {1, 2}, object(), Plain, torch.Size([1])):
        assert negate(value) is value


def test_a_tensor_that_occurs_twice_is_moved_once() -> None:
    calls = []

    def move(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(len(tensors))
        return [tensor.clone() for tensor in tensors]

    moved = replace_tensors([ONE, {"again": ONE}, torch.zeros(1)], move)
    assert calls == [2]
    assert moved[0] is moved[1]["again"]
    assert moved[0] is not ONE


def test_paths_read_like_python() -> None:
    target = torch.zeros(1)
    batch = {"image": [ONE, Pair(ONE, {1: Frozen(target)})]}
    assert path_of(batch, target) == "batch['image'][1].right[1].x"
    assert path_of(target, target) == "batch"
    assert path_of(batch, torch.zeros(1)) == ""


LEAVES = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.builds(torch.tensor, st.integers(-99, 99)))
TREES = st.recursive(
    LEAVES,
    lambda child: st.one_of(
        st.lists(child, max_size=3),
        st.tuples(child, child),
        st.builds(Pair, child, child),
        st.builds(Frozen, child),
        st.dictionaries(st.text(max_size=2), child, max_size=3),
    ),
    max_leaves=12,
)


@given(TREES)
def test_any_nesting_keeps_its_shape(batch: Any) -> None:
    assert repr(negate(negate(batch))) == repr(batch)
    assert [int(tensor) for tensor in tensors_in(negate(batch))] == [-int(tensor) for tensor in tensors_in(batch)]


def test_nothing_is_kept_in_a_cycle() -> None:
    """Batches are large: their memory must not wait for the collector."""
    tensor = torch.ones(2)
    array = np.ones(2)
    kept = weakref.ref(tensor), weakref.ref(array)
    gc.disable()
    try:
        batch = {"x": [tensor, Pair(tensor, 1)], "y": array}
        moved = negate(replace_arrays(batch, torch.from_numpy))
        assert path_of(batch, tensor) == "batch['x'][0]"
        del tensor, array, batch, moved
        assert [item() for item in kept] == [None, None]
    finally:
        gc.enable()
