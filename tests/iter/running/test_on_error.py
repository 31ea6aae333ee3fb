"""``on_error``: bad items are left out, counted and listed, and nothing else; exact at every position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.executors import make_service
from torchpipe import DataLoader2
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper, IterDataPipe
from torchpipe.map import SequenceWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.iterator import NodeIterator
from torchpipe.state import LeftOut, decode, encode, left_out
from torchpipe.state.left_out import LEFT_OUT
from torchpipe.testing import CountingSource, check_node


def no_threes(item: Any) -> Any:
    if item % 3 == 0:
        raise ValueError(f"a three: {item}")
    return item


def good(length: int) -> list[int]:
    return [item for item in range(length) if item % 3]


def with_generator(item: int, rng: np.random.Generator) -> Any:
    return no_threes(item), float(rng.random())


def parts(item: int) -> Iterator[Any]:
    yield item, 0
    if item % 3 == 0:
        raise ValueError("in the middle")
    yield item, 1


def tokens(pack: Any) -> Any:
    return pack["tokens"].tolist()


class Rows:
    """A dataset of which some rows cannot be read."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return int(no_threes(index))


FAILING: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "map": (lambda node: node.map(no_threes), good(12)),
    "filter": (lambda node: node.filter(lambda item: no_threes(item) > 0), good(12)),
    "flatmap": (lambda node: node.flatmap(lambda item: [no_threes(item)] * 2), [n for n in good(12) for _ in "ab"]),
    "unbatch": (lambda node: node.map(lambda n: [n] if n % 3 else n).unbatch(), good(12)),
    "batch": (lambda node: node.batch(2, wrapper_class=lambda batch: [*map(no_threes, batch)]), [[4, 5], [10, 11]]),
    "collate": (lambda node: node.collate(no_threes), good(12)),
    "before": (lambda node: node.map(no_threes).batch(3), [[1, 2, 4], [5, 7, 8], [10, 11]]),
    "sort": (lambda node: node.sort(3, lambda item: -no_threes(item)), [4, 2, 1, 8, 7, 5, 11, 10]),
    "pack": (lambda node: node.map(lambda n: [n] if n % 3 else "x").pack(8).map(tokens), [good(12)]),
    "bucket": (lambda node: node.bucket_by_length([6], 2, no_threes), [[1, 2], [4, 5], [7, 8], [10, 11]]),
    "dynamic": (lambda node: node.dynamic_batch(11, no_threes), [[1, 2, 4], [5], [7], [8], [10], [11]]),
    "rebatch": (lambda node: node.map(lambda n: [n] if n % 3 else n).rebatch(8), [good(12)]),
    "interleave": (lambda node: node.interleave(lambda n: [no_threes(n)], cycle_length=2), good(12)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILING)
def test_L2_bad_items_are_left_out_and_nothing_else(name: str) -> None:
    make, expected = FAILING[name]
    assert list(iterate(make(IterableWrapper(range(12))).on_error("skip"))) == expected
    if name != "batch":  # of which a whole one is left out
        assert list(iterate(make(IterableWrapper(good(12))))) == expected
    check_node(
        lambda: make(CountingSource(range(12))).on_error("skip"),
        pulls=lambda k: 12,
        epochs=[0],
        num_shards=1,
    )


def test_L2_random_functions_iterators_and_datasets() -> None:
    check_node(lambda: CountingSource(range(9)).random_map(with_generator).on_error("skip"), pulls=lambda k: 2 * k)
    check_node(lambda: CountingSource(range(9)).flatmap(parts).on_error("skip"), pulls=lambda k: k + 1, epochs=[0])
    assert [item for item, _ in iterate(IterableWrapper(range(7)).flatmap(parts).on_error("skip"))] == [
        0, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6,
    ]  # fmt: skip
    check_node(lambda: IterableWrapper(Rows()).on_error("skip").sharding_filter(), epochs=[0])
    check_node(lambda: SequenceWrapper(range(12)).map(no_threes).shuffle().on_error("skip"), epochs=[0])
    check_node(lambda: IterableWrapper(Rows()).shuffle().sharding_filter().on_error("skip"), epochs=[0])
    assert sorted(iterate(IterableWrapper(Rows()).shuffle(buffer_size=3).on_error("skip"))) == good(12)


def test_what_was_left_out_is_told_counted_and_listed(caplog: pytest.LogCaptureFixture) -> None:
    iterator = iterate(IterableWrapper(range(7)).map(no_threes).on_error("skip"))
    with caplog.at_level(logging.WARNING, "torchpipe"):
        assert list(iterator) == good(7)
    assert left_out(iterator.state_dict()) == (
        3,
        [LeftOut("Mapper(no_threes)", f"ValueError: a three: {item}", str(item)) for item in (0, 3, 6)],
    )
    assert caplog.messages[1] == "left out an item in Mapper(no_threes): ValueError: a three: 3 3 (2 of 100)"
    assert left_out(iterate(IterableWrapper([1]).on_error("skip")).state_dict()) == (0, [])


def test_of_many_items_that_are_left_out_the_log_has_the_first_ones(caplog: pytest.LogCaptureFixture) -> None:
    iterator = iterate(IterableWrapper([0] * 2000).map(no_threes).on_error("skip", budget=None))
    with caplog.at_level(logging.WARNING, "torchpipe"):
        assert list(iterator) == []
    assert [text.rsplit("(")[-1] for text in caplog.messages] == [f"{count})" for count in (*range(1, 11), 100, 1000)]
    assert left_out(iterator.state_dict())[0] == 2000


NAMED: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "filter": (lambda: IterableWrapper(range(7)).filter(lambda n: bool(no_threes(n))), ["0", "3", "6"]),
    "flatmap": (lambda: IterableWrapper(range(7)).flatmap(parts), ["0", "3", "6"]),
    "threads": (lambda: IterableWrapper(range(7)).parallel_map(no_threes, num_threads=2), ["0", "3", "6"]),
    "interleave": (lambda: IterableWrapper(range(7)).interleave(parts, cycle_length=3), ["0", "3", "6"]),
    "dataset": (lambda: IterableWrapper(Rows()), ["0", "3", "6", "9"]),
    "positions": (lambda: IterableWrapper(Rows()).shuffle(buffer_size=5), ["0", "3", "6", "9"]),
    "keys": (lambda: SequenceWrapper(range(7)).map(no_threes).to_iter_datapipe(), ["0", "3", "6"]),
    "mix": (
        lambda: IterableWrapper([1]).mix(IterableWrapper([3]).cycle(2), weights=[1, 1], by=no_threes),
        ["3", "3"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_was_left_out_is_named_by_what_the_node_had_in_hand(name: str) -> None:
    make, expected = NAMED[name]
    iterator = iterate(make().on_error("skip"))
    list(iterator)
    assert sorted(entry.item for entry in left_out(iterator.state_dict())[1]) == expected


def test_the_budget_is_of_a_pass_and_goes_on_after_a_resume() -> None:
    node = IterableWrapper(range(12)).map(no_threes).on_error("skip", budget=2)
    iterator = iterate(node)
    assert [next(iterator) for _ in range(4)] == [1, 2, 4, 5]
    state = decode(encode(iterator.state_dict()))
    for stream in (iterator, iterate(node)):
        if stream is not iterator:
            stream.load_state_dict(state)
        with pytest.raises(ValueError, match="a three: 6") as caught:
            next(stream)
        assert "has left out 2 items already, which is its budget. The first: Mapper" in caught.value.__notes__[0]
    more = iterate(IterableWrapper(range(12)).map(no_threes).on_error("skip", budget=None))
    more.load_state_dict(state)
    assert list(more) == [7, 8, 10, 11]


def test_a_run_that_met_a_bad_item_goes_on_with_the_node_put_in() -> None:
    graph = IterableWrapper(range(1, 12)).shuffle().map(no_threes)
    with DataLoader2(graph, reading_service=make_service(None, 1)) as loader:
        loader.seed(3)
        got = []
        with pytest.raises(ValueError, match="a three"):
            for item in loader:
                got.append(item)
        state = loader.state_dict()
    with DataLoader2(graph.on_error("skip"), reading_service=make_service(None, 1)) as loader:
        loader.load_state_dict(state)
        got += list(loader)
        assert sorted(got) == good(12)
        mended = loader.state_dict()
    with DataLoader2(graph, reading_service=make_service(None, 1)) as loader:
        loader.load_state_dict(mended)  # and the other way round


def test_L1_L3_in_workers() -> None:
    graph = IterableWrapper(range(40)).sharding_filter().map(no_threes).on_error("skip").batch(3)
    with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
        expected = list(loader)
    with DataLoader2(graph, reading_service=make_service(2, 2, every=1)) as loader:
        iterator = iter(loader)
        got = [next(iterator) for _ in range(6)]
        state = loader.state_dict()
    count, noted = left_out(state)
    assert count == len(noted) >= 8
    with DataLoader2(graph, reading_service=make_service(None, 2)) as loader:
        loader.load_state_dict(state)
        assert got + list(loader) == expected


def test_raise_ends_the_reach_of_a_later_skip() -> None:
    node = IterableWrapper(range(12)).map(no_threes).on_error("raise").map(lambda item: item // (item - 5))
    iterator = iterate(node.on_error("skip"))
    with pytest.raises(ValueError, match="a three: 0"):
        next(iterator)
    fine = IterableWrapper(range(1, 3)).map(no_threes).on_error("raise").map(lambda item: 1 // (item - 1))
    assert list(fine.on_error("skip")) == [1]


class Plain(IterDataPipe[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise ValueError("over")


def test_what_cannot_go_on_is_raised_and_says_so() -> None:
    with pytest.raises(ValueError, match="over") as caught:
        list(Plain().map(str).on_error("skip"))
    assert "cannot leave out an item of Plain: it does not go on after this" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="a three"):
        list(IterableWrapper(range(3)).map(no_threes).on_error("skip", errors=(OSError, TypeError)))
    with pytest.raises(StateError, match="not this one"):
        list(IterableWrapper([1]).map(raise_state_error).on_error("skip"))
    with pytest.raises(TypeError, match="length"):
        len(IterableWrapper([1]).on_error("skip"))
    assert len(IterableWrapper([1]).on_error("raise")) == 1


def raise_state_error(item: Any) -> Any:
    raise StateError("not this one")


@pytest.mark.parametrize("key", ["left_out", "torchpipe.on_error"])
def test_an_item_that_looks_like_a_note_is_an_item(key: str) -> None:
    items: list[Any] = [{key: {"count": 5, "noted": number}} for number in range(4)]
    items[3] = {"left_out": {"count": 5, "noted": []}}
    loader = DataLoader2(IterableWrapper(items).on_error("skip").shuffle(buffer_size=4))
    next(iter(loader))
    assert left_out(loader.state_dict()) == (0, [])


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 4))
def test_batches_hold_all_good_items(bad: list[bool], size: int) -> None:
    def check(index: int) -> int:
        if bad[index]:
            raise KeyError(index)
        return index

    node = IterableWrapper(range(len(bad))).map(check).batch(size).on_error("skip")
    batches = list(node)
    assert [item for batch in batches for item in batch] == [index for index, is_bad in enumerate(bad) if not is_bad]
    assert all(len(batch) == size for batch in batches[:-1])


@pytest.mark.parametrize(
    "forged",
    [
        3,
        {"count": -1, "noted": []},
        {"count": 0, "noted": [["a", "b", "c"]]},
        {"count": 1, "noted": [[1, 2, 3]]},
        {"count": 1 << 40, "noted": [["a", "b", "c"]]},  # and the budget would be used up
    ],
)
def test_L8_forged_states_are_refused(forged: Any) -> None:
    node = IterableWrapper([1]).on_error("skip")
    with pytest.raises(StateError):
        iterate(node).load_state_dict(iterate(node).state_dict() | {LEFT_OUT: forged})


def equal_or_fail(one: Any) -> Any:
    return None if one == 5 else one


def none_of_fives(items: Any) -> Any:
    if 5 in items:
        raise ValueError("bad")
    return items


TOGETHER: dict[str, Callable[[Any], Any]] = {
    "sort": lambda node: node.sort(8, equal_or_fail),
    "batch": lambda node: node.batch(8, wrapper_class=none_of_fives),
    "collate": lambda node: node.batch(8).collate(none_of_fives),
    "map of batches": lambda node: node.batch(8).map(none_of_fives),
    "flatmap of batches": lambda node: node.batch(8).flatmap(none_of_fives),
    "parallel_map of batches": lambda node: node.batch(8).parallel_map(none_of_fives, num_threads=1),
    "pad_batch": lambda node: node.map(lambda item: "five" if item == 5 else [item]).batch(8).pad_batch(),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_all_items_that_fail_together_are_counted(name: str, caplog: pytest.LogCaptureFixture) -> None:
    node = TOGETHER[name](IterableWrapper(range(20)))
    iterator = iterate(node.on_error("skip", budget=8))
    with caplog.at_level(logging.WARNING, "torchpipe"):
        list(iterator)
    count, noted = left_out(decode(encode(iterator.state_dict())))
    assert (count, len(noted)) == (8, 1)
    assert caplog.messages[-1].startswith("left out 8 items in ")
    with pytest.raises((ValueError, TypeError, KeyError)) as caught:
        list(iterate(node.on_error("skip", budget=7)))
    assert "the 8 that fail here together are more than its budget of 7" in caught.value.__notes__[-1]


def test_a_batch_of_a_tuple_is_counted_with_all_its_items() -> None:
    one, other = IterableWrapper(range(8)).fork(2)
    iterator = iterate(one.map(no_threes).batch(4).zip(other.batch(4)).on_error("skip"))
    assert list(iterator) == []
    assert left_out(iterator.state_dict())[0] == 8


def test_one_exception_that_is_raised_again_stands_for_each_item() -> None:
    kept = ValueError("kept")  # as a future gives it each time

    def no_odds(item: int) -> int:
        if item % 2:
            raise kept
        return item

    def graph(budget: int) -> Any:
        one, other = IterableWrapper(range(8)).fork(2)
        return one.map(no_odds).zip(other).on_error("skip", budget=budget)

    iterator = iterate(graph(4))
    assert list(iterator) == [(number, number) for number in (0, 2, 4, 6)]
    count, noted = left_out(iterator.state_dict())
    assert (count, [entry.item for entry in noted]) == (4, ["1", "3", "5", "7"])
    with pytest.raises(ValueError, match="kept"):
        list(iterate(graph(1)))


KEPT = ValueError("kept")


def no_three(item: int) -> int:
    if item in (3, 4):
        raise KEPT
    return item


@pytest.mark.parametrize("where", ["in the shards", "in main"])
def test_one_exception_that_was_refused_once_is_no_refused_one_later(where: str) -> None:
    def run(budget: int | None) -> list[int]:
        graph = IterableWrapper(range(6)).sharding_filter()
        graph = graph.to_device("cpu") if where == "in main" else graph
        with DataLoader2(graph.map(no_three).on_error("skip", budget=budget)) as loader:
            return list(loader)

    for _ in range(2):
        assert run(None) == [0, 1, 2, 5]
        with pytest.raises(ValueError, match="kept"):
            run(1)


def test_an_exception_that_has_every_attribute_is_left_out_like_others() -> None:
    class Odd(Exception):
        def __getattr__(self, name: str) -> Any:
            return name

    def no_threes(item: int) -> int:
        if item == 3:
            raise Odd
        return item

    assert list(IterableWrapper(range(5)).map(no_threes).on_error("skip")) == [0, 1, 2, 4]


class _OwnLastIterator(NodeIterator[Any]):
    saved = ("last_item",)
    last_item = 0

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.last_item += 10
            yield item, self.last_item


class OwnLast(IterDataPipe[Any]):
    iterator = _OwnLastIterator

    def __init__(self, source: IterDataPipe[Any]) -> None:
        self.source = source

    def iterate(self, context: Any) -> NodeIterator[Any]:
        return _OwnLastIterator(self, context, self.source)


def test_what_a_pass_of_a_users_calls_last_item_is_its_own() -> None:
    check_node(lambda: OwnLast(CountingSource(range(5)).map(no_threes)).on_error("skip"), pulls=lambda k: 5, epochs=[0])
    node = OwnLast(IterableWrapper(range(5)).map(no_threes)).on_error("skip")
    assert list(iterate(node)) == [(1, 10), (2, 20), (4, 30)]
