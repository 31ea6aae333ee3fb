"""Reading late: a shard makes only the items that it keeps, and the stream, its states and its errors stay the same."""

from __future__ import annotations

import array
import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, Mapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.traits import reads_late
from torchpipe.state import decode, encode
from torchpipe.testing import check_node

SHARDS = 4


class Images(torch.utils.data.Dataset[torch.Tensor]):
    """A map-style dataset that notes what was read."""

    def __init__(self, length: int = 100) -> None:
        self.length = length
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.read.append(index)
        return torch.full((2,), index)


class Arrow(Images):
    """As Hugging Face's datasets: iterable too, and able to read several items at once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        raise AssertionError("read by index")

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class ByPass:
    """The same items, which can only be iterated."""

    def __init__(self, data: Images) -> None:
        self.data = data

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.data[index] for index in range(len(self.data)))


IDIOMS: dict[str, Callable[[Any], Any]] = {
    "filter": lambda data: IterableWrapper(data).sharding_filter(),
    "shuffle": lambda data: IterableWrapper(data).shuffle().sharding_filter(),
    "short buffer": lambda data: IterableWrapper(data).shuffle(buffer_size=7).sharding_filter(),
    "twice": lambda data: IterableWrapper(data).shuffle(buffer_size=7).shuffle(buffer_size=3).sharding_filter(),
    "both sides": lambda data: IterableWrapper(data).shuffle(buffer_size=7).sharding_filter().shuffle(buffer_size=9),
    "after": lambda data: IterableWrapper(data).sharding_filter().shuffle(buffer_size=9),
    "switched off": lambda data: IterableWrapper(data).shuffle().set_shuffle(False).sharding_filter(),
    "take": lambda data: IterableWrapper(data).shuffle(buffer_size=7).take(100).sharding_filter(),
    "prefetch": lambda data: IterableWrapper(data).prefetch(3).shuffle(buffer_size=7).prefetch(2).sharding_filter(),
    "concat": lambda data: IterableWrapper(data).concat(IterableWrapper([])).shuffle(buffer_size=7).sharding_filter(),
}
MAP_IDIOMS: dict[str, Callable[[Any], Any]] = {
    "map-style filter": lambda data: SequenceWrapper(data).to_iter_datapipe().sharding_filter(),
    "map-style late": lambda data: SequenceWrapper(data).to_iter_datapipe().shuffle(buffer_size=7).sharding_filter(),
    "map-style shuffle": lambda data: SequenceWrapper(data).shuffle().sharding_filter(),
    "map-style twice": lambda data: SequenceWrapper(data).shuffle().shuffle(buffer_size=7).sharding_filter(),
    "map-style fn": lambda data: SequenceWrapper(data).map(torch.neg).map(torch.neg).shuffle().sharding_filter(),
}


def share(graph: Any, shard: int, epoch: int = 0) -> list[int]:
    stream = iterate(graph.map(torch.Tensor.tolist), seed=3, epoch=epoch, shard=shard, num_shards=SHARDS)
    return [item[0] for item in stream]


@pytest.mark.parametrize("make", (IDIOMS | MAP_IDIOMS).values(), ids=IDIOMS | MAP_IDIOMS)
def test_every_item_is_read_once_over_all_shards(make: Callable[[Any], Any]) -> None:
    data = Images()
    graph = make(data)
    shares = [share(graph, shard) for shard in range(SHARDS)]
    assert sorted(itertools.chain(*shares)) == list(range(100))
    assert sorted(data.read) == list(range(100))
    assert reads_late(graph)


@pytest.mark.parametrize("make", IDIOMS.values(), ids=IDIOMS)
def test_L1_the_order_is_that_of_reading_item_by_item(make: Callable[[Any], Any]) -> None:
    late, early = make(Images()), make(ByPass(Images()))
    assert not reads_late(early)
    for epoch in range(2):
        for shard in range(SHARDS):
            assert share(late, shard, epoch) == share(early, shard, epoch)


@pytest.mark.nightly
@pytest.mark.parametrize("make", (IDIOMS | MAP_IDIOMS).values(), ids=IDIOMS | MAP_IDIOMS)
def test_L2_exact_resume(make: Callable[[Any], Any]) -> None:
    check_node(lambda: make(Images(12)) if make is not IDIOMS["take"] else IDIOMS["short buffer"](Images(12)))


def test_what_can_be_read_by_index_and_iterated_is_read_by_index() -> None:
    data = Arrow()
    graph = IterableWrapper(data).shuffle().sharding_filter()
    shares = [share(graph, shard) for shard in range(SHARDS)]
    assert sorted(itertools.chain(*shares)) == sorted(data.read) == list(range(100))


def test_L5_a_buffer_holds_positions_whatever_the_items_weigh() -> None:
    rows = IterableWrapper([np.zeros(10_000) for _ in range(200)]).shuffle(buffer_size=100)
    iterator = iterate(rows)
    next(iterator)
    assert len(encode(iterator.state_dict())) < 1000


class Opaque:
    """What no state can hold without pickling."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_L8_items_that_are_no_plain_data_need_no_pickle() -> None:
    graph = IterableWrapper([Opaque(number) for number in range(20)]).shuffle(buffer_size=5)
    iterator = iterate(graph, seed=1)
    iterator.drop(4)
    resumed = iterate(graph, seed=1)
    resumed.load_state_dict(decode(encode(iterator.state_dict())))
    assert [item.number for item in resumed] == [item.number for item in iterator]


@pytest.mark.parametrize("places", [[1, 99], [-1], ["a"], [True], [[1]], [None], [1.0]])
def test_positions_that_the_data_have_not_are_refused(places: list[Any]) -> None:
    graph = IterableWrapper([[n] for n in range(20)]).shuffle(buffer_size=5)
    state = iterate(graph).state_dict() | {"places": places}
    with pytest.raises(StateError, match="positions that are not in the data"):
        iterate(graph).load_state_dict(state)
    pairs = IterableWrapper([[1]]).concat(IterableWrapper([[2], [3]])).shuffle(buffer_size=5)
    for place in (1, [0], [2, 0], [-1, 0], [0, 1], [1, 2], ["0", 0]):
        with pytest.raises(StateError, match="positions that are not in the data"):
            iterate(pairs).load_state_dict(iterate(pairs).state_dict() | {"places": [place]})


def test_a_buffer_of_items_is_not_taken_for_positions() -> None:
    late, early = IterableWrapper([[1], [2]]).shuffle(), IterableWrapper([[1], [2]]).map(list).shuffle()
    with pytest.raises(StateError, match="holds no items"):
        iterate(early).load_state_dict(iterate(late).state_dict())
    with pytest.raises(StateError, match="holds no positions"):
        iterate(late).load_state_dict(iterate(early).state_dict())


def test_items_are_copied_when_they_are_handed_out_and_the_list_may_grow_meanwhile() -> None:
    rows = [[n] for n in range(6)]
    graph = IterableWrapper(rows).shuffle(buffer_size=3)
    stream = iterate(graph, seed=1)
    got = [next(stream)]
    got[0].append("changed")
    rows.append([99])
    got += list(stream)
    assert sorted(item[0] for item in got) == list(range(6))
    assert rows == [*([n] for n in range(6)), [99]]


def test_L7_an_error_of_the_data_comes_in_its_place_and_only_where_it_is_kept() -> None:
    class Broken(Images):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 5:
                raise KeyError("lost")
            return super().__getitem__(index)

    graph = IterableWrapper(Broken()).shuffle().sharding_filter()
    failed = []
    for shard in range(SHARDS):
        stream = iterate(graph, seed=3, shard=shard, num_shards=SHARDS)
        try:
            assert len(list(stream)) == 25
        except KeyError:
            failed.append(shard)
            assert list(stream) == []
    assert len(failed) == 1


@given(
    st.integers(0, 30),
    st.lists(st.sampled_from(["shuffle", "take", "filter", "concat", "prefetch", "map"]), max_size=5),
    st.integers(1, 3),
    st.integers(0, 12),
)
def test_any_chain_gives_the_same_late_or_early(length: int, steps: list[str], shards: int, resume: int) -> None:
    def chain(source: Any) -> Any:
        for step in steps:
            if step == "shuffle":
                source = source.shuffle(buffer_size=4)
            elif step == "take":
                source = source.take(20)
            elif step == "filter":
                source = source.sharding_filter()
            elif step == "concat":
                source = source.concat(source)
            elif step == "prefetch":
                source = source.prefetch(2)
            elif step == "map":
                source = Mapper(source, list)
        return source

    rows = [[n] for n in range(length)]
    late, early = chain(IterableWrapper(rows)), chain(IterableWrapper(iter_again(rows)))
    for shard in range(shards):
        expected = list(iterate(early, seed=7, shard=shard, num_shards=shards))
        stream = iterate(late, seed=7, shard=shard, num_shards=shards)
        got = [next(stream) for _ in range(min(resume, len(expected)))]
        resumed = iterate(late, seed=7, shard=shard, num_shards=shards)
        resumed.load_state_dict(decode(encode(stream.state_dict())))
        assert got + list(resumed) == expected
        assert got + list(stream) == expected


class iter_again:
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)


def test_workers_read_late_as_well() -> None:
    graph = IterableWrapper(Images(40)).shuffle(buffer_size=9).sharding_filter().map(torch.Tensor.tolist)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2, num_shards=4)) as loader:
        loader.seed(5)
        got = [list(loader), list(loader)]
    early = IterableWrapper(ByPass(Images(40))).shuffle(buffer_size=9).sharding_filter().map(torch.Tensor.tolist)
    with DataLoader2(early, reading_service=MultiProcessingReadingService(2, num_shards=4)) as loader:
        loader.seed(5)
        assert got == [list(loader), list(loader)]


ODD: list[Any] = [
    [],
    (None,),
    "abc",
    bytearray(b"abc"),
    memoryview(b"abc"),
    array.array("i", [1, 2, 3]),
    np.arange(6).reshape(3, 2),
    np.array(["a", "b"]),
    np.zeros((2, 0)),
    np.arange(3).astype(object),
    np.rec.fromarrays([[1, 2], [3, 4]], names="a,b"),
    torch.arange(6).reshape(3, 2),
    collections.deque([[1], [2]]),
    collections.UserList([[1], [2]]),
    {"a": [1], "b": 2},
    {"a": 1}.items(),
    [True, "x", None, 2.5, [1]],
    collections.Counter("aab"),
]


@pytest.mark.parametrize("data", ODD, ids=lambda data: type(data).__name__)
def test_odd_data_in_buffers_resume_everywhere(data: Any) -> None:
    source = IterableWrapper(data)
    chains = [
        source.shuffle(buffer_size=2),
        source.shuffle().sharding_filter().shuffle(buffer_size=2),
        source.concat(source).shuffle(buffer_size=3).take(3),
    ]
    assert sorted(map(repr, chains[0])) == sorted(map(repr, data))
    for chain in chains:
        expected = [repr(item) for item in iterate(chain, seed=2)]
        for count in range(len(expected) + 1):
            stream, resumed = iterate(chain, seed=2), iterate(chain, seed=2)
            stream.drop(count)
            resumed.load_state_dict(decode(encode(stream.state_dict())))
            assert [repr(item) for item in resumed] == expected[count:]
