"""``NodeIterator.saved``: the attributes that say where a pass stands, saved and checked by their names alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import text_of
from torchpipe import DataLoader2, IterDataPipe, NodeIterator, iterate
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.randomness.seeds import IndexStream
from torchpipe.testing import CountingSource, check_node


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
        ("count", -1),
        ("count", True),
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


def test_a_node_that_does_not_say_how_to_iterate_is_refused() -> None:
    class Nothing(IterDataPipe[Any]):
        pass

    with pytest.raises(NotImplementedError, match=r"must name its NodeIterator \(iterator = \.\.\.\)"):
        list(DataLoader2(Nothing()))
