"""Is it the same data? A state over data in another order, replaced, grown or changed is refused, by both loaders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)

from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.identity import identity_of_data
from torchpipe.state import decode, encode
from torchpipe.state.flat import FlatState
from torchpipe.state.shared_list import shared_list


class Rows(Dataset[str]):
    """Of one class, told apart by what it holds."""

    def __init__(self, name: Any, count: int = 20) -> None:
        self.name, self.count = name, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return f"{self.name} {index}"


class Stream(IterableDataset[str]):
    def __init__(self, name: str) -> None:
        self.name = name

    def __iter__(self) -> Any:
        return iter([f"{self.name} {index}" for index in range(20)])


class Said(Rows):
    """Says who it is, whatever it holds."""

    def identity(self) -> Any:
        return ["rows", self.count]


class Odd:
    """Nothing can be asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __len__(self) -> int:
        raise KeyError

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("a sample was read")


class Unread(Rows):
    def __getitem__(self, index: int) -> str:
        raise AssertionError("a sample was read")


CONTAINERS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "shared list": shared_list,
    "array": np.array,
    "texts": lambda order: [f"/data/{number}.jpg" for number in order],
    "pairs": lambda order: [(f"/data/{number}.jpg", 0, {"at": number}) for number in order],
    "subset": lambda order: Subset(Unread("all", 1000), order),
    "tensors": lambda order: TensorDataset(torch.tensor(order), torch.zeros(len(order), 2, 3)),
    "rows of tensors": lambda order: TensorDataset(torch.tensor(order)[:, None, None].expand(-1, 2, 3)),
    "concat": lambda order: ConcatDataset([Unread("first", 9), TensorDataset(torch.tensor(order))]),
    "stack": lambda order: StackDataset(one=order, other=torch.tensor(order)),
    "nested subset": lambda order: Subset(Subset(Unread("all", 1000), order), range(len(order))),
}
kinds = pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
orders = st.lists(st.integers(0, 999), min_size=1, max_size=60)


@kinds
@given(saved=orders, here=orders)
def test_the_identity_is_the_same_exactly_if_the_data_are(
    make: Callable[[list[int]], Any], saved: list[int], here: list[int]
) -> None:
    one, other = identity_of_data(make(saved)), identity_of_data(make(here))
    where = other.difference(decode(encode(one.to_plain())))
    assert (where is None) == (saved == here) == (one.digest == other.digest)
    if where is not None and len(saved) == len(here) and "another from index" in where:
        first = next(at for at, pair in enumerate(zip(saved, here)) if pair[0] != pair[1])
        assert f"index {first} on, of {len(here)}" in where


@kinds
@given(count=st.integers(300, 900), at=st.data())
def test_of_many_items_a_change_of_one_that_counts_is_found(
    make: Callable[[list[int]], Any], count: int, at: st.DataObject
) -> None:
    order = [number % 1000 for number in range(count)]
    place = at.draw(st.sampled_from([0, count - 1]))
    changed = [*order]
    changed[place] = 999 - order[place]
    assert (changed == order) == (identity_of_data(make(order)).digest == identity_of_data(make(changed)).digest)


def other_data() -> Any:
    data = Unread("all", 100)

    def split(seed: int) -> Any:
        return random_split(TensorDataset(torch.arange(100)), [80, 20], torch.Generator().manual_seed(seed))[0]

    yield "a split drawn anew", split(1), split(2), r"dataset\.indices is another from index 0 on, of 80"
    yield "a subset", Subset(data, [1, 2, 3]), Subset(data, [1, 3, 2]), r"dataset\.indices .* index 1 on, of 3"
    yield "a list", [4, 5, 6], [4, 5, 7], r"dataset is another from index 2 on, of 3"
    yield "places", Rows("a"), Rows("b"), r"dataset\.name was a, and is b"
    two = [Rows("/data/en"), Rows("/data/de")]
    yield "datasets", ConcatDataset(two), ConcatDataset(two[::-1]), r"datasets\[0\]\.name was en, and is de"
    yield "streams", Stream("web"), Stream("books"), r"dataset\.name was web, and is books"
    yield "files", ["/d/b", "/d/a"], ["/d/a", "/d/b"], "index 0 on, of 2"


CASES = list(other_data())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("saved", "here", "where"), [case[1:] for case in other_data()], ids=[c[0] for c in other_data()]
)
def test_L7_a_state_of_other_data_is_refused(saved: Any, here: Any, where: str, workers: int) -> None:
    state = DataLoader(saved, 2, num_workers=workers).state_dict()
    again = DataLoader(here, 2, num_workers=workers)
    with pytest.raises(StateMismatchError, match=f"(?s){where}.*allow_other_data=True"):
        again.load_state_dict(state)
    again.load_state_dict(state, allow_other_data=True)
    DataLoader(saved, 2).load_state_dict(state)


@pytest.mark.parametrize("wrap", [IterableWrapper, lambda data: SequenceWrapper(data).to_iter_datapipe()])
@pytest.mark.parametrize(("saved", "here"), [case[1:3] for case in CASES], ids=[case[0] for case in CASES])
def test_L7_a_graph_over_other_data_is_refused(wrap: Any, saved: Any, here: Any) -> None:
    if isinstance(saved, IterableDataset) and wrap is not IterableWrapper:
        wrap = IterableWrapper
    state = DataLoader2(wrap(saved).batch(2)).state_dict()
    again = DataLoader2(wrap(here).batch(2))
    with pytest.raises(StateMismatchError, match="allow_other_data=True"):
        again.load_state_dict(state)
    again.load_state_dict(state, allow_other_data=True)
    DataLoader2(wrap(saved).batch(2)).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="another graph"):
        DataLoader2(wrap(here).batch(3)).load_state_dict(state, allow_other_data=True)


@pytest.mark.parametrize("count", [18, 24])
def test_L7_a_shuffled_node_that_has_another_length_is_refused(count: int) -> None:
    class Numbers(SequenceWrapper[int]):
        fingerprint_ignores = ("sequence",)
        fingerprint_data = ()

    loader = DataLoader2(Numbers(list(range(20))).shuffle())
    taken = list(itertools.islice(loader, 10))
    state = loader.state_dict()
    again = DataLoader2(Numbers(list(range(count))).shuffle())
    again.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=f"random order of 20 items, and here are {count}"):
        next(iter(again))
    same = DataLoader2(Numbers(list(range(20))).shuffle())
    same.load_state_dict(state)
    assert sorted([*taken, *same]) == list(range(20))


def test_what_may_differ_loads() -> None:
    """Folders that all data lie in, what a dataset says itself, what begins with an underscore, and data that move."""
    pairs: list[tuple[Any, Any]] = [
        (Rows("/old/data"), Rows("/new/data")),
        (ConcatDataset([Rows("/old/en"), Rows("/old/de")]), ConcatDataset([Rows("/new/en"), Rows("/new/de")])),
        ([f"/old/{n}" for n in range(9)], [f"/new/{n}" for n in range(9)]),
        (Said("one"), Said("other")),
        ([1, 2, 3], shared_list([1, 2, 3])),
    ]
    for saved, here in pairs:
        DataLoader(here).load_state_dict(DataLoader(saved).state_dict())
    with pytest.raises(StateMismatchError):
        DataLoader(Said("one", 8)).load_state_dict(DataLoader(Said("one", 9)).state_dict())


def test_states_of_former_versions_have_no_identity_and_load() -> None:
    graph = DataLoader2(IterableWrapper(Rows("a")).batch(2))
    flat = FlatState.read(graph.state_dict())
    assert flat.data is not None
    DataLoader2(IterableWrapper(Rows("b")).batch(2)).load_state_dict(
        FlatState(graph=flat.graph, numbers=flat.numbers, common=flat.common).to_dict()
    )


@pytest.mark.parametrize("forged", [0, {}, {"common": {}}, {"common": {"dataset": [1]}, "own": {}}])
def test_L8_damage_is_found(forged: Any) -> None:
    with pytest.raises(StateError):
        identity_of_data(Rows("a")).difference(forged)


def test_odd_objects_raise_nothing_and_no_sample_is_read() -> None:
    odd: Any = Rows("a")
    odd.one, odd.several, odd.named, odd.itself = Odd(), [Odd()] * 3, {1: Odd()}, odd
    odd.tensors = [torch.zeros(3).to_sparse(), torch.zeros(2, device="meta"), torch.zeros(()), torch.zeros(0, 3)]
    odd.arrays = [np.array([object()]), np.zeros((2, 0)), np.zeros(3, [("a", "i4")]), np.array(3)]
    odd.inner = Unread("b")
    assert identity_of_data(odd).difference(identity_of_data(odd).to_plain()) is None
