"""``NodeIterator.saved``: the attributes that say where a pass stands, saved and checked by their names alone."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import text_of
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe, NodeIterator, iterate
from torchpipe.errors import OpaqueStateWarning, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.randomness.seeds import IndexStream
from torchpipe.state import encode
from torchpipe.testing import CountingSource, check_node
from torchpipe.testing.compare import freeze


class _Mixture(NodeIterator[Any]):
    """Hands out each item with what came before it: something of each kind that can be named."""

    saved = ("count", "text", "last", "seen", "by_parity", "random", "share")
    count = 0
    text = ""
    share = 0.5
    last: Any = None

    def __init__(self, node: Any, context: Any, *inputs: Any) -> None:
        super().__init__(node, context, *inputs)
        self.seen: list[int] = []
        self.by_parity: dict[int, int] = {}
        self.random = IndexStream(context.stream_key(node))

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            made = (item, self.count, self.text, self.last, sum(self.seen), dict(self.by_parity), self.share)
            self.count += 1
            self.text = f"{self.text}{item}"[-3:]
            self.last = item
            self.seen.append(item)
            self.by_parity[item % 2] = item
            self.share /= 2
            yield made, self.random.index(100)


class Mixture(IterDataPipe[Any]):
    iterator = _Mixture

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


def test_L2_exact_at_every_position() -> None:
    check_node(lambda: Mixture(CountingSource(range(9))), pulls=lambda k: k)
    check_node(lambda: Mixture(CountingSource(range(9))).shuffle(buffer_size=3).batch(2), pulls=lambda k: 9)


def graph() -> IterDataPipe[Any]:
    return Mixture(IterableWrapper(range(24)).shuffle().sharding_filter()).batch(2).prefetch(2)


def test_L1_L2_L4_with_another_number_of_workers_a_kill_and_the_next_epoch() -> None:
    expected = oracle(graph(), 2)
    with make_loader(graph(), make_service(2, 2, every=1)) as loader:
        first = [repr(item) for item in islice(loader, 5)]
        state = loader.state_dict()
    assert first == expected[0][:5]
    with make_loader(graph(), make_service(1, 2, every=1, worker_prefetch_cnt=1)) as loader:
        loader.load_state_dict(state)
        rest = []
        for item in loader:
            rest.append(repr(item))
            if len(rest) == 1:
                os.kill(pids(loader)[0], signal.SIGKILL)
        assert rest == expected[0][5:]
        assert text_of(loader) == expected[1]


def test_a_state_is_no_part_of_the_pass_that_goes_on() -> None:
    iterator = iterate(Mixture(IterableWrapper(range(5))))
    next(iterator)
    state = iterator.state_dict()
    rest = list(iterator)
    again = iterate(Mixture(IterableWrapper(range(5))))
    again.load_state_dict(state)
    assert list(again) == rest


class _Groups(NodeIterator[Any]):
    saved = ("groups", "order")
    groups: dict[int, list[int]] = {}
    order: list[int] = []

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.groups.setdefault(item % 3, []).append(item)
            self.order.append(item)
            yield {key: list(items) for key, items in self.groups.items()}, list(self.order)


class Groups(IterDataPipe[Any]):
    iterator = _Groups

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


def test_L2_what_the_class_holds_is_no_pass_s_and_what_is_nested_stays_as_it_was_saved() -> None:
    check_node(lambda: Groups(CountingSource(range(9))), pulls=lambda k: k)
    whole = list(iterate(Groups(IterableWrapper(range(9)))))
    assert list(iterate(Groups(IterableWrapper(range(9))))) == whole
    iterator = iterate(Groups(IterableWrapper(range(9))))
    states = [iterator.state_dict() for _ in iterator]
    for place, state in enumerate(states):
        again = iterate(Groups(IterableWrapper(range(9))))
        again.load_state_dict(state)
        assert list(again) == whole[place + 1 :]
    assert _Groups.groups == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", "3"),
        ("text", 3),
        ("seen", (1, 2)),
        ("by_parity", [0]),
        ("random", {"draws": 1}),
        ("share", "half"),
    ],
)
def test_L7_a_value_of_another_type_is_refused_by_name(name: str, value: Any) -> None:
    iterator = iterate(Mixture(IterableWrapper(range(5))))
    next(iterator)
    state = iterator.state_dict()
    for wrong in ({**state, name: value}, {key: kept for key, kept in state.items() if key != name}):
        with pytest.raises(StateError):
            iterate(Mixture(IterableWrapper(range(5)))).load_state_dict(wrong)


class _Kept(NodeIterator[Any]):
    """What the class gives of each kind, all changed in place, and numbers that turn into others."""

    saved = ("recent", "buckets", "counts", "weights", "own", "low", "share", "number", "scalar", "ever")
    recent: deque[Any] = deque(maxlen=3)
    buckets: list[list[Any]] = [[], []]
    counts = np.zeros(3, dtype=np.int64)
    weights = torch.zeros(2)
    own = {"seen": {1}, "by": [deque()]}
    low = 0
    share = 0
    number = 0
    scalar = 0
    ever: Any = None

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.recent.append([item])
            self.recent[0].append(-item)
            self.buckets[item % 2].append(item)
            self.counts[item % 3] += 1
            self.weights[item % 2] += item
            self.own["seen"].add(item)  # type: ignore[attr-defined]
            self.own["by"][0].append(item)  # type: ignore[index]
            self.low -= 1
            self.share = self.share * 0.5 + item
            self.number += np.int64(item)
            self.scalar = self.scalar + torch.tensor(item / 3)  # type: ignore[assignment]
            self.ever = (item, np.float32(item / 7))
            yield freeze([getattr(self, name) for name in self.saved])


class Kept(IterDataPipe[Any]):
    iterator = _Kept

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


def test_L2_all_that_the_class_gives_is_copied_for_each_pass_and_numbers_stay_what_they_are() -> None:
    check_node(lambda: Kept(CountingSource(range(9))), pulls=lambda k: k)
    graph = Kept(IterableWrapper(range(9)).sharding_filter())
    expected = oracle(graph, 2)
    loader = DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2))
    loader.seed(0)
    assert len({tuple(map(repr, loader)) for _ in range(3)}) == 1  # each epoch begins with what the class gives
    with make_loader(graph, make_service(2, 2, every=1)) as loader:
        assert text_of(loader) == expected[0]
    assert not _Kept.recent
    assert _Kept.buckets == [[], []]
    assert not _Kept.counts.any()
    assert _Kept.own["seen"] == {1}


def test_what_would_not_load_is_told_when_it_is_saved() -> None:
    class Turns(_Mixture):
        def run(self) -> Iterator[Any]:
            for item in self.source.items():
                self.seen = (*self.seen, item)  # type: ignore[assignment]
                yield item

    class Node(Mixture):
        iterator = Turns

    iterator = iterate(Node(IterableWrapper(range(3))))
    iterator.state_dict()
    next(iterator)
    with pytest.raises(StateError, match=r"saves seen, which begins as a list and now is \(0,\), a tuple"):
        iterator.state_dict()


def test_what_only_pickle_can_rebuild_or_nothing_can_is_told_with_its_attribute(tmp_path: Path) -> None:
    class Own:
        pass

    class Holds(_Mixture):
        saved = ("count", "last")
        made: Any = Own

        def run(self) -> Iterator[Any]:
            for item in self.source.items():
                self.last = {"it": [self.made()]}
                yield item

    class Node(Mixture):
        iterator = Holds

    loader = DataLoader2(Node(IterableWrapper(range(3))))
    next(iter(loader))
    with pytest.warns(OpaqueStateWarning, match=r"Node\.last holds items of type .*Own"):
        loader.state_dict()
    Holds.made = lambda _: (tmp_path / "file").open("w")
    iterator = iterate(Node(IterableWrapper(range(3))))
    next(iterator)
    with pytest.raises(StateError, match=r"cannot pickle the open file .*, at last\.it\[0\]\."), iterator.last["it"][0]:
        encode(iterator.state_dict())


def test_names_that_are_no_names_are_refused() -> None:
    with pytest.raises(TypeError, match=r"saved = \('count',\)"):

        class Text(NodeIterator[Any]):
            saved = "count"  # type: ignore[assignment]

    class Missing(_Mixture):
        saved = ("cuont",)

    class Node(Mixture):
        iterator = Missing

    with pytest.raises(AttributeError, match="saved names 'cuont', which the iterator does not have"):
        next(iterate(Node(IterableWrapper(range(3)))))


class _Seen:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, item: int) -> list[int]:
        self.seen.append(item)
        return list(self.seen)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_two_passes_that_load_one_state_share_nothing_of_it() -> None:
    node = IterableWrapper(range(5)).map(_Seen())
    iterator = iterate(node)
    next(iterator)
    state = iterator.state_dict()
    rest = list(iterator)
    for _ in range(2):
        again = iterate(node)
        again.load_state_dict(state)
        assert list(again) == rest


class _Views(NodeIterator[Any]):
    saved = ("rows",)
    rows: deque[Any] = deque(maxlen=50)

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.rows.append((item, {"row": torch.zeros(1_000_000)[item : item + 1]}))
            yield item


class Views(IterDataPipe[Any]):
    iterator = _Views

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


def test_a_state_has_the_rows_of_a_view_alone() -> None:
    iterator = iterate(Views(IterableWrapper(range(3))))
    assert list(iterator) == [0, 1, 2]
    rows = iterator.state_dict()["rows"]
    assert [row["row"].untyped_storage().nbytes() for _, row in rows] == [4, 4, 4]


def test_a_node_that_does_not_say_how_to_iterate_is_refused() -> None:
    class Nothing(IterDataPipe[Any]):
        pass

    with pytest.raises(NotImplementedError, match=r"must name its NodeIterator \(iterator = \.\.\.\)"):
        list(DataLoader2(Nothing()))


def test_L7_a_state_with_more_than_the_class_saves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Mixture(IterableWrapper(range(8)))
    whole = iterate(graph, seed=1)
    next(whole)
    state = whole.state_dict()
    monkeypatch.setattr(_Mixture, "saved", tuple(name for name in _Mixture.saved if name != "share"))
    with pytest.raises(StateError, match="the state has 'share', which _Mixture does not save"):
        iterate(graph, seed=1).load_state_dict(state)


class _SavedOfItsOwn(NodeIterator[Any]):
    counts: dict[int, int] = {}

    def __init__(self, *arguments: Any) -> None:
        self.saved = ("counts",)  # type: ignore[misc]
        super().__init__(*arguments)

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.counts[item % 2] = self.counts.get(item % 2, 0) + 1
            yield item, self.counts[item % 2]


class SavedOfItsOwn(IterDataPipe[Any]):
    iterator = _SavedOfItsOwn

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


def test_L1_L2_a_pass_may_say_itself_what_it_saves() -> None:
    loader = DataLoader2(SavedOfItsOwn(IterableWrapper(range(6))))
    assert list(loader) == list(loader) == [(item, item // 2 + 1) for item in range(6)]
    check_node(lambda: SavedOfItsOwn(CountingSource(range(6))))


@pytest.mark.parametrize("early", [True, False])
def test_a_pass_that_was_not_made_by_its_base_is_told_so(early: bool) -> None:
    class Mine(_SavedOfItsOwn):
        def __init__(self, *arguments: Any) -> None:
            if early:
                return
            super().__init__(*arguments)
            self.pass_engine = 0  # type: ignore[assignment]

    class Node(SavedOfItsOwn):
        iterator = Mine

    with pytest.raises(TypeError, match=r"Mine has no pass_engine, which NodeIterator makes: call super\(\)"):
        iterate(Node(IterableWrapper(range(6))))
