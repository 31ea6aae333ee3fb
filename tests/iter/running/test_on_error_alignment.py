"""``on_error("skip")`` and nodes that pair their inputs: the whole tuple goes, and all branches stay in step.

The oracle is the stream without the bad record, by its number through all branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2, IterDataPipe, NodeIterator, iterate
from torchpipe.execution.reading_service import InProcessReadingService
from torchpipe.iter import IterableWrapper, JsonlReader
from torchpipe.map import SequenceWrapper
from torchpipe.state import left_out

LENGTH = 24
BAD = {3, 4, 11, 23}


def checked(item: int) -> int:
    if item in BAD:
        raise ValueError(f"bad: {item}")
    return item


def checked_elsewhere(item: int) -> int:
    if item in {3, 7}:
        raise ValueError(f"bad elsewhere: {item}")
    return item


def ends_early(item: int) -> int:
    return next(value for value in [item] if value not in BAD)


async def checked_later(item: int) -> int:
    return checked(item)


def with_rng(item: int, rng: np.random.Generator) -> int:
    rng.integers(9)
    return checked(item)


def number_of(item: Any) -> Any:
    return item["n"]


def source() -> Any:
    return IterableWrapper(range(LENGTH))


def forked(length: int = 2) -> Any:
    return source().fork(length)


def pair(one: Callable[[Any], Any] = lambda dp: dp, other: Callable[[Any], Any] = lambda dp: dp) -> Any:
    left, right = forked()
    return one(left).zip(other(right))


class _AddIterator(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        one, other = self.inputs
        for right in other.items():  # the second one first
            left = next(one.items(), None)
            if left is None:
                return
            yield left, checked_elsewhere(right)

    def leave_out(self) -> bool:
        return True


class Pairs(IterDataPipe[Any]):
    iterator = _AddIterator
    one_to_one = True

    def __init__(self, one: IterDataPipe[Any], other: IterDataPipe[Any]) -> None:
        self.one = one
        self.other = other


def three() -> Any:
    one, two, other = forked(3)
    return one.map(checked).zip(two).zip(other.map(checked_elsewhere))


def batches_of_pairs() -> Any:
    one, two, other = forked(3)
    return one.map(checked).zip(two).batch(3).zip(other.batch(3))


def zip_under_batch_under_zip() -> Any:
    one, two, other, last = forked(4)
    inner = one.map(checked).zip(two).batch(2).zip(other.batch(2))
    return inner.zip(last.map(checked_elsewhere).batch(2))


def concatenated() -> Any:
    first, second = IterableWrapper(range(10)), IterableWrapper(range(10, LENGTH))
    return first.map(checked).concat(second.map(checked)).zip(source())


def keyed() -> Any:
    left, right = forked()
    return left.zip_with_iter(right.map(checked), key_fn=int, merge_fn=lambda item, other: other).zip(source())


def dealt() -> Any:
    low, high = source().demux(2, lambda item: checked(item) % 2)
    return low.mux_longest(high).map(lambda n: (n, n))


EXACT: dict[str, Callable[[], Any]] = {
    "map": lambda: pair(lambda dp: dp.map(checked)),
    "the second branch": lambda: pair(other=lambda dp: dp.map(checked)),
    "both branches": lambda: pair(lambda dp: dp.map(checked), lambda dp: dp.map(checked_elsewhere)),
    "random_map": lambda: pair(lambda dp: dp.random_map(with_rng)),
    "parallel_map": lambda: pair(lambda dp: dp.parallel_map(checked, num_threads=2, buffer_size=3)),
    "before parallel_map": lambda: pair(lambda dp: dp.map(checked).parallel_map(int, num_threads=2, buffer_size=5)),
    "prefetch": lambda: pair(lambda dp: dp.map(checked).prefetch(3)),
    "retry": lambda: pair(lambda dp: dp.map(checked).retry(2, errors=KeyError)),
    "zip_longest": lambda: (lambda bs: bs[0].map(checked).zip_longest(bs[1]))(forked()),
    "a node of one's own": lambda: Pairs(source().map(checked), source()),
    "its own code": lambda: Pairs(source(), source()),
    "three": three,
    "concat": concatenated,
    "two sources": lambda: source().map(checked).zip(source()),
    "map-style": lambda: SequenceWrapper(range(LENGTH)).map(checked).to_iter_datapipe().zip(source()),
    "before fork": lambda: (lambda bs: bs[0].zip(bs[1]))(source().map(checked).fork(2)),
    "before demux": dealt,
    "a generator ends": lambda: pair(lambda dp: dp.map(ends_early)),
    "zip_with_map": lambda: pair(
        lambda dp: dp.zip_with_map(SequenceWrapper(range(LENGTH)), checked, merge_fn=lambda item, other: other)
    ),
    "zip_with_iter": keyed,
    "divided": lambda: source().map(checked).sharding_filter().zip(source().sharding_filter()),
    "divided before": lambda: source().sharding_filter().map(checked).zip(source().sharding_filter()),
    "divided behind": lambda: source().map(checked).zip(source()).sharding_filter(),
}


def flat(item: Any) -> list[int]:
    if isinstance(item, tuple | list):
        return [number for part in item for number in flat(part)]
    return [item]


def wanted(name: str) -> list[int]:
    also: set[int] = {3, 7} if name in ("both branches", "three", "a node of one's own", "its own code") else set()
    bad = also if name == "its own code" else BAD | also
    return [number for number in range(LENGTH) if number not in bad]


def in_shards(graph: Any, num_shards: int) -> DataLoader2[Any]:
    return DataLoader2(graph, reading_service=InProcessReadingService(num_shards=num_shards))


@pytest.mark.parametrize("name", list(EXACT))
def test_L2_what_is_left_out_is_left_out_of_the_tuple(name: str) -> None:
    graph = EXACT[name]().on_error("skip")
    stream = iterate(graph)
    items = list(stream)
    assert all(len(set(flat(item))) == 1 for item in items), items
    numbers = [flat(item)[0] for item in items]
    assert (sorted(numbers) if name == "before demux" else numbers) == wanted(name)
    count, noted = left_out(stream.state_dict())
    if name != "zip_with_iter":  # the reference, and the item that asks for it
        assert count == len(noted) == LENGTH - len(items)
    for done in range(len(items) + 1):
        begun = iterate(graph)
        for _ in range(done):
            next(begun)
        again = iterate(graph)
        again.load_state_dict(begun.state_dict())
        assert list(again) == items[done:]
        assert left_out(again.state_dict()) == (count, noted)


@pytest.mark.parametrize(
    ("name", "num_shards"),
    [("divided", 3), ("divided before", 3), ("divided behind", 3), ("before parallel_map", 1), ("three", 1)],
)
def test_L1_L2_in_shards(name: str, num_shards: int) -> None:
    graph = EXACT[name]().on_error("skip")
    items = list(in_shards(graph, num_shards))
    assert sorted(flat(item)[0] for item in items) == wanted(name)
    assert all(len(set(flat(item))) == 1 for item in items), items
    for done in range(0, len(items), 3):
        loader = in_shards(graph, num_shards)
        stream = iter(loader)
        for _ in range(done):
            next(stream)
        again = in_shards(graph, num_shards)
        again.load_state_dict(loader.state_dict())
        assert list(again) == items[done:]


@pytest.mark.parametrize("build", [batches_of_pairs, zip_under_batch_under_zip])
def test_L2_batches_are_of_the_same_records(build: Callable[[], Any]) -> None:
    graph = build().on_error("skip")
    items = list(iterate(graph))
    assert items
    for item in items:
        assert len({tuple(dict.fromkeys(flat(list(part)))) for part in item}) == 1, item
    numbers = [number for item in items for number in dict.fromkeys(flat(list(item)))]
    assert numbers == sorted(set(numbers))
    for done in range(len(items) + 1):
        begun = iterate(graph)
        for _ in range(done):
            next(begun)
        again = iterate(graph)
        again.load_state_dict(begun.state_dict())
        assert list(again) == items[done:]


def test_batches_of_both_branches_lose_the_same_one() -> None:
    graph = pair(lambda dp: dp.map(checked).batch(4), lambda dp: dp.batch(4)).on_error("skip")
    assert [(list(one), list(other)) for one, other in iterate(graph)] == [
        ([12, 13, 14, 15], [12, 13, 14, 15]),
        ([16, 17, 18, 19], [16, 17, 18, 19]),
    ]


def test_two_files_stay_in_step(tmp_path: Path) -> None:
    for name, bad in (("x", "3"), ("y", "5")):
        lines = [f'{{"n": {number}}}' if str(number) != bad else "{oops" for number in range(9)]
        (tmp_path / name).write_text("\n".join(lines))
    graph = (
        JsonlReader(f"{tmp_path}/x").map(number_of).zip(JsonlReader(f"{tmp_path}/y").map(number_of)).on_error("skip")
    )
    assert list(iterate(graph)) == [(number, number) for number in (0, 1, 2, 4, 6, 7, 8)]


@pytest.mark.parametrize(
    "branch",
    [
        lambda dp: dp.map(checked).filter(lambda n: True),
        lambda dp: dp.map(checked).shuffle(buffer_size=4),
        lambda dp: dp.flatmap(lambda n: [checked(n)]),
        lambda dp: dp.map(checked).mux(source()),
    ],
    ids=["filter", "shuffle", "flatmap", "mux"],
)
def test_what_cannot_stay_in_step_is_refused(branch: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match="bad: 3") as caught:
        list(iterate(pair(branch).on_error("skip")))
    assert any("cannot leave out" in note for note in caught.value.__notes__)


def test_an_error_before_a_fork_whose_branches_meet_others_is_refused() -> None:
    one, other = source().map(checked).fork(2)
    with pytest.raises(ValueError, match="bad: 3") as caught:
        list(iterate(one.zip(other).zip(source()).on_error("skip")))
    assert any("cannot leave out" in note for note in caught.value.__notes__)


def test_nothing_is_left_out_beyond_the_budget() -> None:
    graph = pair(lambda dp: dp.map(checked)).on_error("skip", budget=2)
    stream = iterate(graph)
    assert [next(stream) for _ in range(9)][-1] == (10, 10)
    with pytest.raises(ValueError, match="bad: 11"):
        next(stream)


def test_L1_L4_in_workers() -> None:
    graph = EXACT["divided"]().on_error("skip")
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert list(loader) == list(in_shards(graph, 2))
    graph = EXACT["parallel_map"]().on_error("skip").prefetch(2)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(1)) as loader:
        assert [one for one, _ in loader] == wanted("parallel_map")


def failing(*numbers: int) -> Callable[[int], int]:
    def fails(item: int) -> int:
        if item in numbers:
            raise ValueError(f"bad: {item}")
        return item

    return fails


class _InTurnIterator(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        one, other = self.inputs
        for left in one.items():  # the other one is not asked for anything before
            yield left, next(other.items())

    def leave_out(self) -> bool:
        return True


class InTurn(Pairs):
    iterator = _InTurnIterator


class Unsaid(IterDataPipe[Any]):
    """Pairs, and says nothing of it."""

    def __init__(self, one: IterDataPipe[Any], other: IterDataPipe[Any]) -> None:
        self.one = one
        self.other = other

    def __iter__(self) -> Iterator[Any]:
        yield from zip(self.one, self.other)


class Either(Unsaid):
    """Has several inputs, and pairs nothing."""

    pairs = False

    def __iter__(self) -> Iterator[Any]:
        yield from self.one
        yield from self.other


def test_the_first_tuple_of_a_node_that_has_not_asked_for_all_its_inputs() -> None:
    one, other = forked()
    paired = list(iterate(InTurn(one.map(failing(0, 5)), other.map(failing(0, 9))).on_error("skip")))
    assert paired == [(n, n) for n in range(LENGTH) if n not in (0, 5, 9)]


def test_L7_a_node_of_a_users_that_does_not_say_it_goes_on_raises() -> None:
    one, other = forked()
    with pytest.raises(ValueError, match="bad: 5") as caught:
        list(iterate(Unsaid(one.map(failing(5)), other).on_error("skip")))
    assert "cannot leave out an item of Unsaid: it does not go on after this" in caught.value.__notes__[-1]
    one, other = IterableWrapper(range(4)), IterableWrapper(range(4, 6))
    assert list(iterate(Either(one.map(failing(2)), other).on_error("skip"))) == [0, 1, 3, 4, 5]


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.integers(0, 12), st.integers(1, 4))
def test_L2_any_bad_records_at_any_position(first: set[int], second: set[int], at: int, ahead: int) -> None:
    def build() -> Any:
        one, other = IterableWrapper(range(10)).fork(2)
        one = one.map(failing(*first)).parallel_map(int, num_threads=1, buffer_size=ahead)
        return one.zip(other.map(failing(*second))).on_error("skip")

    iterator = iterate(build())
    got = [item for _, item in zip(range(at), iterator)]
    again = iterate(build())
    again.load_state_dict(iterator.state_dict())
    assert got + list(again) == [(n, n) for n in range(10) if n not in first | second]


def dealt_by_kind(dp: Any) -> Any:
    return dp.demux(2, lambda text: text[0] == "a")


DEALT = ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3"]


def without_q1(text: str) -> str:
    if text == "q1":
        raise ValueError("bad: q1")
    return text


def classify(text: str) -> int:
    return without_q1(text)[0] == "a"


def refused(graph: Any) -> None:
    with pytest.raises(ValueError, match="bad: q1") as caught:
        list(iterate(graph.on_error("skip")))
    assert "cannot leave out an item of branch" in caught.value.__notes__[-1]


@pytest.mark.parametrize("deal", [dealt_by_kind], ids=["by kind"])
def test_what_is_lost_before_it_is_dealt_belongs_to_no_branch(deal: Callable[[Any], Any]) -> None:
    def branches() -> Any:
        return deal(IterableWrapper(DEALT).map(without_q1))

    def other() -> Any:
        return IterableWrapper(DEALT)

    one, two = branches()
    refused(one.zip(two))
    one, two = branches()
    refused(one.map(str).zip(two.map(str)).zip(other()))
    for first, second in ([0, 1], [1, 0]):  # whichever branch begins the shared pass
        one, two = branches()
        left, right = one.fork(2)
        rest = [left, right.zip(two)]
        refused(rest[first].concat(rest[second]))
    one, two = branches()
    refused(one.on_error("skip").zip(two))
    inner, outer = deal(one.mux(two))  # dealt twice, and paired behind the second
    refused(inner.zip(outer))
    left, right = IterableWrapper(DEALT).map(without_q1).fork(2)
    refused((lambda dealt: dealt[0].zip(dealt[1]))(deal(left.concat(right))))


@pytest.mark.parametrize("deal", [dealt_by_kind, lambda dp: dp.fork(2)], ids=["kind", "fork"])
def test_L7_an_on_error_of_one_branch_does_not_end_the_stream_of_all(deal: Callable[[Any], Any]) -> None:
    one, two = deal(IterableWrapper(DEALT).map(without_q1))
    with pytest.raises(ValueError, match="bad: q1"):  # the other branch, which is not to go on without it
        list(iterate(one.take(1).mux_longest(two.on_error("skip"))))
    one, two = deal(IterableWrapper(DEALT).map(without_q1))
    assert {"a2", "q3", "a3"} <= {*iterate(two.mux_longest(one).on_error("skip"))}


def test_a_classifier_that_raises_has_dealt_to_no_branch() -> None:
    one, two = IterableWrapper(DEALT).demux(2, classify)
    refused(one.zip(two))
    one, two = IterableWrapper(DEALT).demux(2, classify)
    assert list(one.concat(two).on_error("skip")) == ["q0", "q2", "q3", "a0", "a1", "a2", "a3"]


@pytest.mark.parametrize("deal", [dealt_by_kind], ids=["by kind"])
def test_L2_dealt_branches_that_are_not_paired_go_on_without_it(deal: Callable[[Any], Any]) -> None:
    def build(paired: bool) -> Any:
        one, two = deal(IterableWrapper(DEALT).map(without_q1))
        if not paired:
            return one.mux_longest(two).on_error("skip")
        left, right = one.mux_longest(two).fork(2)  # what is lost is lost for both
        return left.zip(right.map(str)).on_error("skip")

    for paired in (False, True):
        items = list(build(paired))
        assert sorted(str(item[0] if paired else item) for item in items) == sorted({*DEALT} - {"q1"})
        assert not paired or all(one == other for one, other in items)
        for done in range(len(items) + 1):
            begun, again = iterate(build(paired)), iterate(build(paired))
            for _ in range(done):
                next(begun)
            again.load_state_dict(begun.state_dict())
            assert list(again) == items[done:]


def test_what_is_lost_behind_demux_is_lost_with_its_pair() -> None:
    low, high = IterableWrapper(range(10)).demux(2, lambda n: n % 2)
    assert list(low.map(failing(4)).zip(high).on_error("skip")) == [(0, 1), (2, 3), (6, 7), (8, 9)]
