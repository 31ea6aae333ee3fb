"""``fork``, ``demux``, ``round_robin_demux`` and ``unzip``: one pass for all branches, which the state has once."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, IterDataPipe, NodeIterator
from torchpipe.errors import GraphError, StateError
from torchpipe.formats.storage.streams import wrap_stream
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.datapipe import iterate
from torchpipe.state import decode, encode
from torchpipe.testing import CountingSource, check_node


class Weave(IterDataPipe[Any]):
    """Reads its inputs in a given order, until one that is asked has ended."""

    def __init__(self, order: str, *datapipes: Any) -> None:
        self.order = order
        self.datapipes = datapipes

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _WeaveIterator(self, context, *self.datapipes)


class _WeaveIterator(NodeIterator[Any]):
    node: Weave
    place = 0

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]

    def run(self) -> Iterator[Any]:
        end = object()
        while self.place < len(self.node.order):
            which = int(self.node.order[self.place])
            item = next(self.inputs[which].items(), end)
            if item is end:
                return
            self.place += 1
            yield which, item


def parity(item: int) -> int | None:
    return None if item % 5 == 4 else item % 3 % 2


def parts(item: Any) -> Iterator[Any]:
    yield from (item, item)


MAKERS: dict[str, Any] = {
    "fork": lambda source, **options: source.fork(2, **options),
    "demux": lambda source, **options: source.demux(2, parity, drop_none=True, **options),
}
KINDS = list(MAKERS)


def make(kind: str, source: Any, **options: Any) -> list[Any]:
    return MAKERS[kind](source, **options)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["0101011010", "0001111001", "1111111111"])
def test_L2_exact_resume_however_branches_are_read(kind: str, order: str) -> None:
    check_node(
        lambda: Weave(order, *make(kind, CountingSource(range(12)).shuffle(buffer_size=3))),
        pulls=lambda k: 12,
        epochs=[0],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_L2_exact_resume_where_states_of_branches_are_of_different_moments(kind: str) -> None:
    """A branch that is taken apart lazily is saved as it was before the item at hand."""

    def one() -> IterDataPipe[Any]:
        """Behind each read of an item by the first, the second has read as many more as it may."""
        first, second = make(kind, CountingSource(range(14)), buffer_size=3 if kind in ("fork", "unzip") else 9)
        return Weave("111" + "001" * 7, first.flatmap(parts), second)

    def both() -> IterDataPipe[Any]:
        first, second = make(kind, CountingSource(range(14)))
        return Weave("0010111001010110", first.flatmap(parts), second.flatmap(parts).shuffle(buffer_size=2))

    check_node(one, pulls=lambda k: 14, epochs=[0], num_shards=1)
    check_node(both, pulls=lambda k: 14, epochs=[0], num_shards=1)


@given(st.text("012", min_size=1, max_size=12), st.integers(0, 8))
def test_L2_any_order_of_three_branches(order: str, length: int) -> None:
    check_node(
        lambda: Weave(order, *CountingSource(range(length)).fork(3)), pulls=lambda k: k, epochs=[0], num_shards=1
    )


def test_L2_a_classifier_with_state_is_saved_and_copied() -> None:
    class InTurn:
        calls = 0

        def __call__(self, item: Any) -> int:
            self.calls += 1
            return self.calls % 2

        def state_dict(self) -> dict[str, int]:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.calls = state["calls"]

    check_node(lambda: Weave("0110", *CountingSource(range(12)).demux(2, InTurn())), pulls=lambda k: 12, epochs=[0])


def drawn(item: Any) -> Any:
    return item, random.random()


def drawing(item: Any) -> Iterator[Any]:
    yield item, random.random()
    yield item, random.random()


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_L2_exact_where_global_random_numbers_are_drawn_before_and_in_branches() -> None:
    def loader(seed: int) -> Any:
        one, other = IterableWrapper(range(8)).map(drawn).fork(2)
        loader = DataLoader2(one.flatmap(drawing).zip(other.map(drawn)))
        loader.seed(seed)
        return loader

    expected = list(loader(3))
    for position in range(8):
        first, second = loader(3), loader(4)
        batches = iter(first)
        for _ in range(position):
            next(batches)
        second.load_state_dict(first.state_dict())
        assert list(second) == expected[position:], position


def test_L1_branches_see_one_pass() -> None:
    made: list[int] = []
    one, other = IterableWrapper(range(9)).shuffle().map(lambda item: made.append(item) or item).fork(2)
    items = list(iterate(one.map(str).zip(other)))
    assert all(first == str(second) for first, second in items)
    assert sorted(made) == list(range(9))


def test_what_goes_where() -> None:
    evens, odds = IterableWrapper(range(10)).demux(2, lambda item: item % 2)
    assert list(evens.zip(odds)) == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert list(evens.concat(odds)) == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]
    assert [len(branch) for branch in IterableWrapper(range(8)).fork(2)] == [8, 8]
    with pytest.raises(TypeError, match="not known"):
        len(evens)
    source = IterableWrapper(range(3))
    assert source.fork(1) is source  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("copy", "same"),
    [(None, (False, False)), ("same", (True, True)), ("shallow", (False, True)), ("deep", (False, False))],
)
def test_copies(copy: Any, same: Any) -> None:
    one, other = IterableWrapper([[[1]]]).fork(2, copy=copy)
    ((first, second),) = list(one.zip(other))
    assert (first is second, first[0] is second[0]) == same


def test_L5_a_branch_that_nothing_reads_gets_nothing() -> None:
    one, _ = IterableWrapper(range(50)).fork(2, buffer_size=1)
    assert len(list(one)) == 50
    evens, _ = IterableWrapper(range(50)).demux(2, lambda item: item % 2, buffer_size=1)
    assert list(evens) == list(range(0, 50, 2))


def test_L5_the_state_has_buffers_and_inputs_once() -> None:
    text = "long text that is easily found" * 9
    one, other, third = IterableWrapper([text, text, text, "z"]).shuffle(buffer_size=3).fork(3)
    iterator = iterate(Weave("0012", one.shuffle(buffer_size=1), other, third))
    for count in range(1, 5):
        next(iterator)
        assert encode(iterator.state_dict()).count(text.encode()) <= 3, count
    repeated = IterableWrapper([0] * 400).fork(2)
    states = [iterate(repeated[0].zip(repeated[1])) for _ in range(2)]
    states[1].drop(390)
    assert abs(len(encode(states[0].state_dict())) - len(encode(states[1].state_dict()))) < 30


@pytest.mark.parametrize("kind", KINDS)
def test_L7_a_buffer_never_overflows_silently(kind: str) -> None:
    first, second = make(kind, IterableWrapper(range(60)), buffer_size=5)
    with pytest.raises(
        BufferError, match=r"^[a-z]\w+\(\) buffer overflow, buffer size 5 is insufficient.* is read by nothing so far"
    ):
        list(first.concat(second))
    with pytest.warns(UserWarning, match="has no bound"):
        first, second = make(kind, IterableWrapper(range(60)), buffer_size=-1)
    assert len(list(first.concat(second))) >= 48


@pytest.mark.parametrize("kind", KINDS)
def test_L2_a_run_that_an_overflow_has_ended_goes_on_with_a_larger_buffer(kind: str) -> None:
    def loader(size: int) -> DataLoader2[Any]:
        first, second = make(kind, IterableWrapper(range(60)), buffer_size=size)
        return DataLoader2(first.concat(second))

    expected = list(loader(99))
    begun, head = loader(5), []
    with pytest.raises(BufferError):
        for item in begun:
            head.append(item)
    assert head
    again = loader(99)
    again.load_state_dict(begun.state_dict())
    assert head + list(again) == expected


@pytest.mark.parametrize("lead", range(8))
def test_the_bound_is_what_one_branch_may_read_ahead(lead: int) -> None:
    one, other = IterableWrapper(range(9)).fork(2, buffer_size=5)
    order = "0" * lead + "1"
    if lead <= 5:
        assert len(list(iterate(Weave(order, one, other)))) == lead + 1
    else:
        with pytest.raises(BufferError, match="branch 0 has read 5 items"):
            list(iterate(Weave(order, one, other)))


def test_a_branch_may_be_read_several_times() -> None:
    one, other = IterableWrapper(range(4)).shuffle().fork(2, buffer_size=1)
    assert all(first == second == third for first, second, third in iterate(one.zip(one, other)))
    check_node(lambda: _twice(CountingSource(range(4))), pulls=lambda k: 2 * k)


def _twice(source: Any) -> IterDataPipe[Any]:
    one, other = source.fork(2, buffer_size=1)
    return one.zip(other, one)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_of_a_cycle_have_a_pass_each(kind: str) -> None:
    def cycled() -> IterDataPipe[Any]:
        first, second = make(kind, CountingSource(range(7)).shuffle(buffer_size=2), buffer_size=4)
        return first.zip(second).cycle(2)  # type: ignore[no-any-return]

    check_node(cycled, pulls=lambda k: 14, epochs=[0], num_shards=1)
    first, second = make(kind, IterableWrapper(range(7)), buffer_size=4)
    expected = list(first.zip(second))
    assert list(first.cycle(2).zip(second.cycle(2)).take(len(expected))) == expected


def test_forks_of_forks() -> None:
    def tree() -> IterDataPipe[Any]:
        one, other = CountingSource(range(9)).shuffle(buffer_size=4).fork(2)
        evens, odds = one.demux(2, lambda item: item % 2)
        left, right = evens.zip(odds).fork(2)
        return left.zip(other, right)

    check_node(tree, pulls=lambda k: 9)


def test_prefetch_reads_branches_in_one_thread() -> None:
    def apart() -> IterDataPipe[Any]:
        one, other = CountingSource(range(9)).fork(2)
        return one.prefetch(3).zip(other.map(str).prefetch(2))

    def after() -> IterDataPipe[Any]:
        one, other = CountingSource(range(9)).fork(2)
        return one.zip(other).prefetch(3)

    check_node(apart, pulls=lambda k: k)
    check_node(after, pulls=lambda k: min(k + 4, 9))
    one, other = IterableWrapper(range(9)).fork(2)
    with pytest.raises(GraphError, match="Join the branches"):
        iterate(one.to_device("cpu").zip(other))


class OfUser(IterDataPipe[Any]):
    """Without a state: it is run again from its start."""

    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = datapipes

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*self.datapipes)


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
def test_branches_under_nodes_of_users() -> None:
    def both() -> IterDataPipe[Any]:
        return OfUser(*CountingSource(range(9)).fork(2))

    def one() -> IterDataPipe[Any]:
        first, second = IterableWrapper(range(9)).sharding_filter().fork(2)
        return OfUser(first).zip(second)

    check_node(both)
    iterator = iterate(one())
    iterator.drop(4)
    with pytest.raises(StateError, match=r"OfUser reads a branch of fork\(\) and has no state"):
        iterator.state_dict()
    loader, again = DataLoader2(one()), DataLoader2(one())  # a loader replays all of it
    expected = list(loader)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    again.load_state_dict(loader.state_dict())
    assert list(again) == expected[4:]


def test_L6_streams_that_wait_are_closed_with_the_pass() -> None:
    streams = [wrap_stream(io.BytesIO(b"x"), name=str(number)) for number in range(4)]
    evens, odds = IterableWrapper(streams, deepcopy=False).demux(2, lambda stream: int(stream.name) % 2)
    iterator = iterate(Weave("00", evens, odds))
    next(iterator)
    _, held = next(iterator)
    iterator.close()
    assert [stream.closed for stream in streams] == [False, True, False, False]
    assert held is streams[2]


@pytest.mark.parametrize("kind", KINDS)
def test_L8_forged_states_are_refused(kind: str) -> None:
    def new() -> NodeIterator[Any]:
        return iterate(Weave("00110", *make(kind, IterableWrapper(range(12)))))

    iterator = new()
    for _ in range(2):
        next(iterator)
    data = encode(iterator.state_dict())
    changes = [
        {"read": [1, 2, 3]}, {"read": [-1, 0]}, {"read": 3}, {"waiting": [9, 9]}, {"items": 3}, {"items": []},
        {"pulled": "x"}, {"inputs": []},
    ]  # fmt: skip
    for change in changes:
        state = decode(data)
        state["inputs"][0]["inputs"][0] |= change
        with pytest.raises(StateError):
            resumed = new()
            resumed.load_state_dict(state)
            list(resumed)
    state = decode(data)
    del state["inputs"][0]["inputs"][0]["items"]
    with pytest.raises(StateError, match="is not in the state of any of its branches"):
        resumed = new()
        resumed.load_state_dict(state)
        list(resumed)
    state = decode(data)
    state["inputs"][0]["count"] = 99
    with pytest.raises(StateError, match="of 99 items"):
        resumed = new()
        resumed.load_state_dict(state)
        list(resumed)


def _sharded(length: int) -> IterDataPipe[Any]:
    one, other = IterableWrapper(range(length)).shuffle().sharding_filter().fork(2)
    low, high = other.demux(2, lambda item: item % 2, buffer_size=60)
    return one.zip(low.concat(high).shuffle(buffer_size=5)).batch(3)


def test_L1_and_L3_under_worker_processes() -> None:
    with DataLoader2(_sharded(60), reading_service=MultiProcessingReadingService(2)) as loader:
        loader.seed(3)
        expected = list(loader)
        loader.set_epoch(0)
        iterator = iter(loader)
        got = [next(iterator) for _ in range(7)]
        state = loader.state_dict()
    here = DataLoader2(_sharded(60))
    here.load_state_dict(state)
    assert got + list(here) == expected
    assert sorted(item for batch in expected for item, _ in batch) == list(range(60))


def test_branches_stay_in_one_part_of_the_graph() -> None:
    one, other = IterableWrapper(range(9)).fork(2)
    with pytest.raises(GraphError, match="cannot share one pass"):
        DataLoader2(one.sharding_round_robin_dispatch().zip(other))
    assert list(DataLoader2(one.zip(other).sharding_round_robin_dispatch())) == [(item, item) for item in range(9)]
    first, second = IterableWrapper(range(9)).sharding_round_robin_dispatch().fork(2)
    with DataLoader2(first.zip(second), reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == [(item, item) for item in range(9)]


def test_wrong_items_are_errors() -> None:
    source = IterableWrapper(range(3))
    cases: list[Any] = [
        (lambda: list(source.demux(2, lambda item: 2)[0]), ValueError, "between 0 and 1, 2 is returned for item 0"),
        (lambda: list(source.demux(2, lambda item: None)[0]), ValueError, "drop_none=True"),
        (lambda: list(source.demux(2, lambda item: "0")[0]), ValueError, "'0' is returned"),  # type: ignore[arg-type,return-value]
        (lambda: list(source.fork(2)[0].source), TypeError, "read by its branches"),  # type: ignore[attr-defined]
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
