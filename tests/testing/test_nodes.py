"""The kit must catch what it is for: one deliberately wrong node for each check."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.testing import CountingSource, check_node, freeze


class Node(IterDataPipe[Any]):
    """Runs an iterator class over its input."""

    kind: type[NodeIterator[Any]]

    def __init__(self, datapipe: IterDataPipe[Any], kind: type[NodeIterator[Any]]) -> None:
        self.datapipe = datapipe
        self.kind = kind
        self.seen: list[int] = []

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return self.kind(self, context, self.datapipe)


class Right(NodeIterator[Any]):
    """Pairs of neighbours: holds one item back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.held: list[Any] = []

    def get_state(self) -> dict[str, Any]:
        return {"held": list(self.held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.held = list(state["held"])

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            if self.held:
                pair = (self.held[0], item)
                self.held = [item]
                yield pair
            else:
                self.held = [item]


class OverReads(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        items = list(self.source.items())
        yield from items


class ReadsOneTooMany(Right):
    def run(self) -> Iterator[Any]:
        stream = self.source.items()
        while len(self.held) < 2:
            try:
                self.held.append(next(stream))
            except StopIteration:
                break
        while self.held:
            item = self.held.pop(0)
            self.held.extend(next_item for next_item in [next(stream, None)] if next_item is not None)
            yield item


class LosesBuffer(Right):
    def get_state(self) -> dict[str, Any]:
        return {"held": []}


class LosesBufferAfterLoading(Right):
    """Saves what it has, but not what it has loaded and not yet used."""

    started = False

    def get_state(self) -> dict[str, Any]:
        return {"held": list(self.held) if self.started else []}

    def run(self) -> Iterator[Any]:
        self.started = True
        yield from super().run()


class SharesState(Right):
    """Hands out its own list as the state, and goes on to change it."""

    def get_state(self) -> dict[str, Any]:
        return {"held": self.held}

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            if self.held:
                pair = (self.held.pop(), item)
                self.held.append(item)
                yield pair
            else:
                self.held.append(item)


class KeepsLoadedState(SharesState):
    """Goes on in the very list that was loaded."""

    def get_state(self) -> dict[str, Any]:
        return {"held": list(self.held)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.held = state["held"]


class GlobalDraws(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            yield item + random.random()


class ChangesNode(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.node.seen.append(item)
            yield item


COUNTS: dict[int, int] = {}


class SharesNode(NodeIterator[Any]):
    """Two passes over a node disturb each other; no attribute of the node changes."""

    def run(self) -> Iterator[Any]:
        counts = COUNTS
        counts[id(self.node)] = 0
        for item in self.source.items():
            counts[id(self.node)] += 1
            yield item, counts[id(self.node)]


class SurvivesClose(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        yield from self.source.items()

    def close(self) -> None:
        pass


class LeavesInputOpen(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        yield from self.source.items()

    def close(self) -> None:
        self.pass_engine.end_stream()


class Opaque(Right):
    def get_state(self) -> dict[str, Any]:
        return {"held": [Holder(item) for item in self.held]}

    def set_state(self, state: dict[str, Any]) -> None:
        self.held = [holder.item for holder in state["held"]]


class Holder:
    def __init__(self, item: Any) -> None:
        self.item = item


class Slotted:
    __slots__ = ("item",)

    def __init__(self, item: Any) -> None:
        self.item = item


class IgnoresLateLoad(Right):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self.pass_engine.is_begun:
            super().load_state_dict(state)


class WrongLength(Node):
    def __len__(self) -> int:
        return 3


class Unpicklable(Node):
    def __reduce_ex__(self, *_: Any) -> Any:
        raise TypeError("no")


def factory(kind: type[NodeIterator[Any]], node: type[Node] = Node) -> Any:
    return lambda: node(CountingSource(range(7)), kind)


def pairs(count: int) -> int:
    return count + 1


def test_a_right_node_passes() -> None:
    check_node(factory(Right), pulls=pairs)


@pytest.mark.parametrize(
    ("make", "pulls", "complaint"),
    [
        (factory(OverReads), pairs, "were pulled"),
        (factory(ReadsOneTooMany), pairs, "were pulled"),
        (factory(Right), None, "2 items of a source were pulled for 1 items, 1 are allowed"),
        (factory(LosesBuffer), pairs, "saved at item 1 and loaded gave .* as item 0, not"),
        (factory(LosesBufferAfterLoading), pairs, "saved at item 1, loaded, saved at once and loaded"),
        (factory(SharesState), pairs, "the state saved at item . changed"),
        (factory(KeepsLoadedState), pairs, "the second of two passes that loaded the same state"),
        (factory(GlobalDraws), None, "a pickled copy gave|a second pass"),
        (factory(ChangesNode), None, "iterating changed seen of Node"),
        (factory(SharesNode), None, "while another over the same node"),
        (factory(SurvivesClose), None, "gave an item after close"),
        (factory(LeavesInputOpen), None, "left its input open"),
        (factory(Opaque), pairs, "not plain data"),
        (factory(IgnoresLateLoad), pairs, "loaded a state after its first item"),
        (factory(Right, WrongLength), pairs, "len\\(\\) says 3, but there are 6"),
        (factory(Right, Unpicklable), pairs, "cannot be pickled"),
    ],
)
def test_wrong_nodes_are_caught(make: Any, pulls: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_node(make, pulls=pulls)


class YieldsItsOwnList(NodeIterator[Any]):
    saved = ("window",)
    window: list[Any] = []

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.window.append(item)
            del self.window[:-2]
            yield self.window


class SharesItsClass(NodeIterator[Any]):
    window: list[Any] = []  # not named in saved, and so nobody's own

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.window.append(item)
            yield len(self.window)


class Grows(NodeIterator[Any]):
    saved = ("seen",)
    seen: list[Any] = []

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.seen.append(item)
            yield item


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (YieldsItsOwnList, r"item 0 was \[0\] when it came, and is \[18, 19\] once others have come"),
        (SharesItsClass, "a pass changed SharesItsClass.window, which belongs to the class"),
        (Grows, "what it saves grows with the position, by .* in seen"),
    ],
)
def test_what_is_kept_or_shared_is_caught(kind: type[NodeIterator[Any]], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_node(lambda: Node(CountingSource(range(60)), kind))
    if kind is Grows:
        check_node(lambda: Node(CountingSource(range(60)), kind), grows=True, positions=3)


def test_opaque_states_can_be_allowed() -> None:
    check_node(factory(Opaque), pulls=pairs, opaque=True)


def test_global_random_draws_can_be_allowed() -> None:
    check_node(factory(GlobalDraws), global_random=True)


def test_an_endless_stream_is_checked_up_to_the_limit() -> None:
    check_node(lambda: CountingSource(range(3)).cycle(), limit=20)


def test_the_users_random_states_are_left_alone() -> None:
    random.seed(5)
    before = random.getstate(), torch.get_rng_state().tolist()
    check_node(factory(GlobalDraws), global_random=True)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


SAME = [
    (float("nan"), float("nan")),
    (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")])),
    (torch.zeros(2, 3).T, torch.zeros(3, 2)),
    ({"a": [np.arange(3)]}, {"a": [np.arange(3)]}),
    ({1, 2, 3}, {3, 2, 1}),
    (ValueError("x"), ValueError("x")),
    (Holder([1]), Holder([1])),
    (np.array([None, 1]), np.array([None, 1])),
    (torch.tensor(1, dtype=torch.bfloat16), torch.tensor(1, dtype=torch.bfloat16)),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    (torch.ones(2, dtype=torch.cfloat).conj(), torch.ones(2, dtype=torch.cfloat).conj()),
    (Slotted(1), Slotted(1)),
    (Path("a"), Path("a")),
    (len, len),
]
DIFFERENT = [
    (1, True),
    (1, 1.0),
    (0.0, -0.0),
    ([1], (1,)),
    (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    (torch.zeros(2, 3), torch.zeros(3, 2)),
    (np.zeros(2), np.zeros(2, dtype=np.float32)),
    (np.float64(1), 1.0),
    (Holder([1]), Holder([2])),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (torch.eye(2).to_sparse(), 2 * torch.eye(2).to_sparse()),
    (Slotted(1), Slotted(2)),
    (Path("a"), Path("b")),
    (threading.Lock(), threading.Lock()),
    (iter("a"), iter("b")),
    (len, abs),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_items_that_are_the_same_are_equal(one: Any, other: Any) -> None:
    assert freeze(one) == freeze(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_items_that_differ_at_all_are_not(one: Any, other: Any) -> None:
    assert freeze(one) != freeze(other)


def test_a_plain_generator_node_passes_by_replay() -> None:
    class Squares(IterDataPipe[int]):
        def __init__(self, datapipe: IterDataPipe[int]) -> None:
            self.datapipe = datapipe

        def __iter__(self) -> Iterator[int]:
            for item in self.datapipe:
                yield item * item

    check_node(lambda: Squares(CountingSource(range(6))))
    check_node(lambda: Squares(IterableWrapper(range(6)).shuffle()))
