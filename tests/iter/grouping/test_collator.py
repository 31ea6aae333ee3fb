"""``collate``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from tests.processes.values import DTYPES, bits, make
from torchpipe.iter import IterableWrapper
from torchpipe.iter._shared.batches import default_collate_in, stack_without_files
from torchpipe.node.context import Context
from torchpipe.node.host import Host
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


# -- in memory that is offered ----------------------------------------------------------------


class Offer:
    """Memory of the kind that a worker offers; counts what was taken."""

    def __init__(self, *, none: bool = False) -> None:
        self.none = none
        self.taken: list[int] = []

    def __call__(self, size_bytes: int) -> Any:
        if self.none or not size_bytes:
            return None
        self.taken.append(size_bytes)
        return np.full(size_bytes, 0xAB, np.uint8)


def collated(samples: list[Any], offer: Offer) -> Any:
    graph = IterableWrapper([samples]).collate()
    with Context.for_graph(graph, seed=0, host=Host(memory=offer)).iterate(graph) as iterator:
        return next(iterator)


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert bits(got) == bits(expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_equal(got[key], expected[key])
    elif isinstance(expected, list):
        for one, other in zip(got, expected, strict=True):
            assert_equal(one, other)
    else:
        assert got == expected


@st.composite
def batches_of_samples(draw: st.DrawFn) -> list[Any]:
    """Samples of one structure, whose tensors may or may not be of one dtype."""
    dtypes = draw(
        st.sampled_from([[dtype] for dtype in DTYPES] + [[torch.float32, torch.float64], [torch.int8, torch.int64]])
    )
    shape = draw(st.sampled_from([(), (3,), (2, 3), (0,), (300, 250)]))
    samples = []
    for number in range(draw(st.integers(1, 5))):
        value = make(dtypes[number % len(dtypes)], shape, number)
        samples.append({"x": value, "pair": (value.T if value.dim() == 2 else value, number), "name": str(number)})
    return samples


@given(samples=batches_of_samples(), none=st.booleans())
def test_it_is_what_torch_makes_wherever_it_is_made(samples: list[Any], none: bool) -> None:
    offer = Offer(none=none)
    assert_equal(collated(samples, offer), default_collate(samples))


def test_what_is_large_is_made_in_the_memory_that_is_offered() -> None:
    offer = Offer()
    samples: list[Any] = [
        {"x": torch.full((10_000,), 1.5), "y": np.arange(5_000), "z": 3, "small": torch.ones(8_191)},
        {"x": torch.ones(10_000), "y": np.ones(5_000, int), "z": 4, "small": torch.ones(8_191)},
    ]
    got = collated(samples, offer)
    assert_equal(got, default_collate(samples))
    assert offer.taken == [2 * 10_000 * 4, 2 * 5_000 * 8]


class Special(torch.Tensor):
    """A subclass, which torch.stack keeps."""


@pytest.mark.parametrize(
    "sample",
    [torch.ones(9_000, requires_grad=True), torch.ones(9_000).as_subclass(Special)],
    ids=["part of a graph", "subclass"],
)
def test_what_could_not_be_the_same_there_is_made_as_ever(sample: torch.Tensor) -> None:
    offer = Offer()
    got, expected = collated([sample, sample], offer), default_collate([sample, sample])
    assert type(got) is type(expected)
    assert got.requires_grad == expected.requires_grad
    assert torch.equal(got, expected)
    assert not offer.taken


def test_what_torch_refuses_is_refused_as_ever() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        collated([torch.ones(9_000), torch.ones(8_000)], Offer())
    with pytest.raises(RuntimeError, match="sparse"):
        collated([torch.ones(3).to_sparse()] * 2, Offer())


@pytest.mark.parametrize("item", [3, {"a": 1}])
def test_single_items_are_told_from_batches(item: Any) -> None:
    with pytest.raises((TypeError, KeyError)) as caught:
        list(IterableWrapper([item]).collate())
    assert f"got an item of type {type(item).__name__}: put batch() before it" in caught.value.__notes__[0]


@given(samples=batches_of_samples())
def test_without_files_it_is_what_torch_makes(samples: list[Any]) -> None:
    expected = default_collate(samples)
    with without_files():
        assert_equal(default_collate(samples), expected)
        assert_equal(collated(samples, Offer()), expected)


@contextmanager
def without_files() -> Iterator[None]:
    """As in a worker process, where ``default_collate`` makes no files."""
    try:
        stack_without_files()
        yield
    finally:
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn


def test_a_way_of_the_users_to_stack_tensors_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_sum(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        return sum(batch, torch.zeros(()))

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, as_sum)
    stack_without_files()
    offer = Offer()
    assert torch.equal(default_collate([torch.ones(30_000)] * 3), torch.full((30_000,), 3.0))
    assert torch.equal(collated([torch.ones(30_000)] * 3, offer), torch.full((30_000,), 3.0))
    assert not offer.taken


PLAIN = [
    [1, 2, 3],
    [True, False],
    [1, True],
    [2**63, 1],
    [1, 2.5],
    [-(2**63), 2**63 - 1],
    [1.5, -0.0, float("inf")],
    [1.5, 2],
    [np.float64(1.5), 2.5],
    ["a", "b"],
    [{"x": 1, "y": {"z": 1.5}}, {"y": {"z": 2.5}, "x": 2}],
    [OrderedDict(x=1), OrderedDict(x=2)],
    [{"x": 1}, OrderedDict(x=2)],
    [OrderedDict(x={"y": 1}), OrderedDict(x={"y": 2})],
    [[1, 2.5], [3, 4.5]],
    [(1, {"x": [1, 2]}), (3, {"x": [3, 4]})],
    [{}, {}],
    [torch.zeros(2), torch.zeros(2).as_subclass(Special)],
    [{"x": None}],
    [[1], [1, 2]],
    [1, "a"],
]


@pytest.mark.parametrize("offer", [Offer(), None], ids=["worker", "in process"])
@pytest.mark.parametrize("samples", PLAIN, ids=str)
def test_plain_samples_are_collated_as_torch_does(samples: list[Any], offer: Offer | None) -> None:
    def outcome(make: Any) -> Any:
        try:
            return make(samples)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    assert_equal(outcome(default_collate_in(offer)), outcome(default_collate))


def test_a_type_that_default_collate_was_taught_is_collated_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(batch: list[Any], *, collate_fn_map: Any = None) -> str:
        return " ".join(sorted(name for sample in batch for name in sample))

    monkeypatch.setitem(default_collate_fn_map, Mapping, names)
    assert default_collate_in(None)([{"b": 1}, {"a": 2}]) == default_collate([{"b": 1}, {"a": 2}]) == "a b"
