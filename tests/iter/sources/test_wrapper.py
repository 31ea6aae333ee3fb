"""``IterableWrapper``: what can be wrapped, how each kind resumes, what is copied."""

from __future__ import annotations

import array
import collections
import random
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe.errors import ReplayWarning, StateError
from torchpipe.execution.epoch import ShardSpec
from torchpipe.execution.shard import Shard
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.host import Host
from torchpipe.state import Cursor, SnapshotPolicy, decode, encode
from torchpipe.testing import check_node, freeze


class Indexed:
    """The old sequence protocol: no ``__iter__``."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> str:
        if index >= 5:
            raise IndexError
        return f"item {index}"


class Stream:
    """Can be iterated again and again, but keeps no state."""

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


class StatefulIterable:
    """Keeps its position itself, as Hugging Face's datasets and torchdata's loaders do."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < 6:
            self.next += 1
            yield self.next
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": [self.next]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        (self.next,) = state["next"]


class StatefulIterator:
    def __init__(self) -> None:
        self.place = [0]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.place[0] == 4:
            raise StopIteration
        self.place[0] += 1
        return self.place[0]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}  # its own list: the node must copy it

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class MakesStatefulIterators:
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


SEQUENCES: list[Any] = [
    [],
    [1, 2, 3],
    (1, "b", None),
    range(5),
    "abc",
    b"abc",
    [[1], [2]],
    array.array("i", [1, 2, 3]),
    np.arange(6).reshape(3, 2),
    np.arange(3),
    torch.arange(6).reshape(3, 2),
    collections.deque([1, 2, 3]),
    {"a": 1, "b": 2},
    {"a": 1, "b": 2}.values(),
    {"a": 1, "b": 2}.items(),
    Indexed(),
]


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda value: type(value).__name__)
def test_L2_sequences_resume_at_once(sequence: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        check_node(lambda: IterableWrapper(sequence))
        check_node(lambda: IterableWrapper(sequence, deepcopy=False))


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda value: type(value).__name__)
def test_items_are_those_that_python_iterates(sequence: Any) -> None:
    assert [freeze(item) for item in IterableWrapper(sequence)] == [freeze(item) for item in sequence]


def test_L5_a_position_in_a_sequence_costs_nothing_to_reach() -> None:
    class Huge:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> int:
            return index

    iterator = iterate(IterableWrapper(Huge()))
    iterator.load_state_dict({"position": 10**12 - 1})
    assert list(iterator) == [10**12 - 1]


@pytest.mark.parametrize("make", [StatefulIterable, StatefulIterator, MakesStatefulIterators])
def test_L2_iterables_with_state_use_it(make: Any) -> None:
    check_node(lambda: IterableWrapper(make()))
    iterator = iterate(IterableWrapper(make()))
    next(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplayWarning)
        resumed = iterate(IterableWrapper(make()))
        resumed.load_state_dict(decode(encode(iterator.state_dict())))
        assert next(resumed) == 2


def test_L2_other_iterables_are_replayed() -> None:
    check_node(lambda: IterableWrapper(Stream()))


class Mixed:
    """Draws from the global random states when an iteration begins, and keeps no state."""

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(10), 10)


def test_L2_an_iterable_that_draws_global_random_numbers_is_replayed_with_its_shard() -> None:
    graph = IterableWrapper(Mixed()).map(lambda item: (item, random.random()))
    spec = ShardSpec(seed=1, epoch=0, shard=0, num_shards=1)

    def start(cursor: Cursor) -> Shard:
        shard = Shard((graph,), spec, host=Host(policy=lambda: SnapshotPolicy(every=1)))
        shard.within(lambda: shard.start(cursor))
        return shard

    def items(shard: Shard, count: int) -> tuple[list[Any], bytes | None]:
        got: list[Any] = []
        snapshot = None
        while len(got) < count:
            chunk = shard.within(lambda: shard.produce(1))
            got += chunk.items
            snapshot = chunk.snapshot
        return got, snapshot

    expected, _ = items(start(Cursor()), 10)
    _, snapshot = items(start(Cursor()), 4)
    for cursor in (Cursor(snapshot), Cursor(snapshot, 2), Cursor(None, 4)):
        first = cursor.skip + (4 if cursor.snapshot else 0)
        assert items(start(cursor), 10 - first)[0] == expected[first:]


def test_L5_a_replay_is_announced_once_with_its_length() -> None:
    iterator = iterate(IterableWrapper(Stream()))
    iterator.drop(3)
    state = iterator.state_dict()
    resumed = iterate(IterableWrapper(Stream()))
    with pytest.warns(ReplayWarning, match="the iterable Stream keeps no state: replaying its first 3") as seen:
        resumed.load_state_dict(state)
    assert list(resumed) == [3, 4]
    assert len(seen) == 1


def test_data_that_became_shorter_is_an_error() -> None:
    iterator = iterate(IterableWrapper([1, 2, 3]))
    iterator.drop(3)
    with pytest.raises(StateError, match="after item 3, but there are only 2"):
        iterate(IterableWrapper([1, 2])).load_state_dict(iterator.state_dict())
    iterator = iterate(IterableWrapper(Stream(5)))
    iterator.drop(4)
    resumed = iterate(IterableWrapper(Stream(2)))
    with pytest.warns(ReplayWarning):
        resumed.load_state_dict(iterator.state_dict())
    with pytest.raises(StateError, match="ended after 2 of 4"):
        next(resumed)


def test_an_error_of_the_data_passes_unchanged_also_while_replaying() -> None:
    class Broken(Stream):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyError("lost")

    node = IterableWrapper(Broken())
    with pytest.raises(KeyError, match="lost"):
        list(node)
    resumed = iterate(node)
    with pytest.warns(ReplayWarning):
        resumed.load_state_dict({"position": 3})
    with pytest.raises(KeyError, match="lost"):
        next(resumed)


def test_an_iterator_that_can_be_read_once_serves_one_pass() -> None:
    node = IterableWrapper(iter([1, 2, 3]))
    first, second = iterate(node), iterate(node)
    assert next(first) == 1
    with pytest.raises(RuntimeError, match=r"can be read once .*, and was read already"):
        next(second)
    assert list(first) == [2, 3]
    with pytest.raises(RuntimeError, match="give it a list"):
        list(node)


def test_a_fresh_generator_is_replayed_and_a_used_one_refuses_a_state() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)

    node = IterableWrapper(numbers())
    iterator = iterate(node)
    iterator.drop(2)
    state = iterator.state_dict()
    resumed = iterate(IterableWrapper(numbers()))  # as in a new process
    with pytest.warns(ReplayWarning, match="first 2 items"):
        resumed.load_state_dict(state)
    assert list(resumed) == [2, 3, 4]
    with pytest.raises(StateError, match="was read already: item 2 cannot be reached"):
        iterate(node).load_state_dict(state)


@pytest.mark.parametrize(
    "items",
    [
        [[1], [2]],
        ([1], [2]),
        [{"a": [1]}],
        [np.zeros(2)],
        [torch.zeros(2)],
        np.zeros((2, 2)),
        torch.zeros(2, 2),
        [(1, [2])],
        [bytearray(b"a")],
    ],
    ids=str,
)
def test_L1_changing_an_item_in_place_does_not_change_the_data(items: Any) -> None:
    def spoil(item: Any) -> Any:
        if isinstance(item, tuple):
            item[1].append(0)
        elif isinstance(item, dict):
            item["a"].append(0)
        elif isinstance(item, list | bytearray):
            item.append(0)
        else:
            item += 1
        return item

    node = IterableWrapper(items).map(spoil)
    assert [freeze(item) for item in node] == [freeze(item) for item in node]
    shared = IterableWrapper(items, deepcopy=False).map(spoil)
    assert [freeze(item) for item in shared] != [freeze(item) for item in shared]


def test_a_view_is_copied_without_the_memory_it_looks_into() -> None:
    node = IterableWrapper(torch.zeros(1000, 1000))
    assert next(iter(node)).untyped_storage().nbytes() == 4000


def test_a_pass_is_not_disturbed_when_the_list_grows_or_shrinks() -> None:
    items = [1, 2, 3]
    iterator = iterate(IterableWrapper(items))
    assert next(iterator) == 1
    items.clear()
    assert list(iterator) == [2, 3]


def test_what_cannot_be_copied_is_handed_out_itself() -> None:
    lock = threading.Lock()
    assert next(iter(IterableWrapper([lock]))) is lock

    class Unique(StatefulIterable):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is but one")

    with pytest.warns(UserWarning, match="cannot copy its Unique .*there is but one"):
        assert list(IterableWrapper(Unique())) == [1, 2, 3, 4, 5, 6]


def test_a_list_that_holds_itself() -> None:
    items: list[Any] = [1]
    items.append(items)
    copied: Any = next(iter(IterableWrapper([items])))
    assert copied[1] is copied


def test_a_node_may_be_wrapped() -> None:
    inner = IterableWrapper(range(5)).shuffle()
    check_node(lambda: IterableWrapper(IterableWrapper(range(5)).shuffle()))
    assert len(IterableWrapper(inner)) == 5


def test_a_length_that_the_data_do_not_say_is_not_known() -> None:
    with pytest.raises(TypeError):
        len(IterableWrapper(Stream()))
