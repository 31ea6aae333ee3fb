"""Replacing tensors keeps every container's type, and touches nothing else."""

from __future__ import annotations

import dataclasses
import gc
import types
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchpipe.device.tree import path_of, replace_arrays, replace_tensors, tensors_in
from torchpipe.node.datapipe import DataChunk


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


class Object:
    def __init__(self, x: Any, label: str) -> None:
        self.x, self.label = x, label

    def __repr__(self) -> str:
        return f"Object({vars(self)})"


class Slotted:
    __slots__ = ("__secret", "x")

    def __init__(self, x: Any, label: str) -> None:
        self.x, self.__secret = x, label

    def __repr__(self) -> str:
        return f"Slotted({self.x}, {self.__secret})"


class Named(list[Any]):
    """A list whose constructor wants something else than items."""

    def __init__(self, name: str, *items: Any) -> None:
        super().__init__(items)
        self.name = name

    def __repr__(self) -> str:
        return f"Named({self.name}, {list(self)})"


class Point(tuple[Any, ...]):
    def __new__(cls, name: str, x: Any) -> Point:
        made = super().__new__(cls, (name, x))
        made.kept = x
        return made

    kept: Any

    def __repr__(self) -> str:
        return f"Point({tuple(self)}, {self.kept})"


class View(Mapping[str, Any]):
    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"View({self._values})"


class Tags(set[Any]):
    def __init__(self, name: str, *items: Any) -> None:
        super().__init__(items)
        self.name = name


class Exact(OrderedDict[str, Any]):
    """Its values are attributes, too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.__dict__[key] = value


class Wrapped:
    """As torch_xla's DataWrapper, its tensors made at each call."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def get_tensors(self) -> list[Any]:
        return [self.x + 0, self.x + 1]

    def from_tensors(self, tensors: list[Any]) -> Any:
        return {"unwrapped": tensors}


def objects(*items: Any) -> Any:
    made = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        made[index] = item
    return made


def with_attribute(chunk: Any, x: Any) -> Any:
    chunk.extra = x
    return chunk


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
        lambda x: types.SimpleNamespace(x=x, y=[x, "a"]),
        lambda x: Object({"x": x}, "b"),
        lambda x: Slotted(x, "b"),
        lambda x: Named("a", x, 1),
        lambda x: Point("a", x),
        lambda x: View({"x": x, "y": 1}),
        lambda x: Exact(x=x),
        lambda x: types.MappingProxyType({"x": x, "y": 1}),
        lambda x: deque([x, 1], maxlen=3),
        lambda x: {x},
        lambda x: frozenset([x]),
        lambda x: objects(x, "a"),
    ],
)
def test_types_and_other_values_are_kept(make: Any) -> None:
    batch, expected = make(ONE), make(-ONE)
    moved = negate(batch)
    assert type(moved) is type(batch)
    assert repr(moved) == repr(expected)
    assert repr(batch) == repr(make(ONE))  # the batch itself is unchanged


def test_L7_the_attributes_of_containers_are_replaced_too() -> None:
    for batch in (
        Named("a", 1),
        OrderedDict(y=1),
        Tags("a", 1),
        Extended(torch.ones(2)),
        Point("", 1),
    ):
        moved = negate(with_attribute(batch, ONE))
        assert type(moved) is type(batch)
        assert torch.equal(moved.extra, -ONE)
        assert batch.extra is ONE  # type: ignore[attr-defined]
    tags = negate(Tags("kept", ONE, 2))
    assert (type(tags), tags.name, len(tags)) == (Tags, "kept", 2)
    assert torch.equal(negate(Exact(x=ONE)).x, -ONE)


def test_the_batch_sizes_of_a_packed_sequence_stay() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    moved = negate({"x": packed})["x"]
    assert type(moved) is type(packed)
    assert moved.batch_sizes is packed.batch_sizes
    assert torch.equal(moved.data, -packed.data)
    assert torch.equal(moved.sorted_indices, -packed.sorted_indices)
    assert len(tensors_in(packed)) == 3


def test_a_wrapper_is_unwrapped_over_the_moved_tensors() -> None:
    moved = negate([Wrapped(ONE)])[0]
    assert [tensor.tolist() for tensor in moved["unwrapped"]] == [[-1.0, -1.0], [-2.0, -2.0]]


def test_what_torch_returns_by_name_keeps_its_type() -> None:
    found = torch.max(torch.eye(2), dim=0)
    moved = negate(found)
    assert type(moved) is type(found)
    assert torch.equal(moved.indices, -found.indices)


def in_itself() -> list[Any]:
    batch: list[Any] = [1, {"x": ONE}]
    batch[1]["again"] = batch
    return batch


class Sealed(View):
    """Makes its values anew from what nobody can see."""

    __slots__ = ()

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__({})
        self._seen = lambda: values

    def __getitem__(self, key: str) -> Any:
        return self._seen()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen())

    def __len__(self) -> int:
        return len(self._seen())


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (in_itself, ValueError, "^batch, of type list, contains itself and tensors"),
        (lambda: {"a": [in_itself()]}, ValueError, r"^batch\['a'\]\[0\], of type list, contains itself"),
        (lambda: [{ONE: 1}], TypeError, r"^batch\[0\] has a tensor in a key"),
        (lambda: [{(1, ONE): torch.ones(1)}], TypeError, r"^batch\[0\] has a tensor in a key"),
        (lambda: [partial(abs, ONE)], TypeError, r"^batch\[0\] is a functools.partial, in which tensors cannot"),
        (lambda: {"v": {"x": ONE}.values()}, TypeError, r"^batch\['v'\] is a builtins.dict_values"),
        (lambda: [Sealed({"x": ONE})], TypeError, r"^batch\[0\] is a .*Sealed, .* a copy of it keeps the old ones"),
    ],
)
def test_L7_what_cannot_be_copied_is_refused_by_name(make: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        negate(make())


def test_L7_a_batch_that_is_nested_too_deeply_is_said_to_be() -> None:
    batch: Any = ONE
    for _ in range(5_000):
        batch = [batch]
    with pytest.raises(ValueError, match="nested too deeply"):
        negate(batch)


def test_what_refers_to_itself_without_tensors_stays() -> None:
    parent = Object(None, "parent")
    parent.x = [Object(parent, "child")]
    moved = negate({"about": parent, "x": ONE, "once": [ONE], "twice": [ONE]})
    assert moved["about"] is parent
    shared = [ONE]
    moved = negate([shared, {"again": shared}])
    assert moved[0] is moved[1]["again"]


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
