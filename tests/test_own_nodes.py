"""Nodes that users write: stateful functions, sharding points, inputs by name, names that are taken, main sections."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import make_loader, make_service
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe, NodeIterator, iterate
from torchpipe.errors import GraphError
from torchpipe.iter import IterableWrapper
from torchpipe.node.iterator import _OF_AUTHORS
from torchpipe.node.traits import inputs_of
from torchpipe.testing import CountingSource, check_node

# --- in the main section, with all defaults


class _Numbered(NodeIterator[Any]):
    saved = ("number",)
    number = 0

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.number += 1
            yield self.number, item


class Numbered(IterDataPipe[Any]):
    iterator = _Numbered
    runs_in_main = True

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


class _Listed(NodeIterator[Any]):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[Any] = []

    def get_state(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            self.seen.append(item)
            yield sum(self.seen)


class Listed(Numbered):
    iterator = _Listed


def numbers() -> Any:
    return IterableWrapper(range(12)).sharding_filter()


MAIN = {
    "saved": lambda: Numbered(numbers()),
    "get_state": lambda: Listed(numbers()),
    "both": lambda: Listed(Numbered(numbers()).map(lambda pair: pair[0])),
    "saved, then ahead": lambda: Numbered(numbers()).prefetch(3),
    "saved, then on a device": lambda: Numbered(numbers()).map(torch.tensor).to_device("cpu"),
    "take behind a device": lambda: numbers().map(torch.tensor).to_device("cpu").take(7),
    "skip behind a device": lambda: numbers().map(torch.tensor).to_device("cpu").skip(3).prefetch(2),
    "numbers behind a device": lambda: numbers().map(lambda n: {"n": n}).to_device("cpu").enumerate(),
}


@pytest.mark.parametrize("make", MAIN.values(), ids=MAIN)
@pytest.mark.parametrize("workers", [0, 2])
def test_L2_a_node_with_state_in_the_main_section(make: Any, workers: int) -> None:
    def loader() -> Any:
        service = make_service(2, 2) if workers else InProcessReadingService(num_shards=2)
        return make_loader(make(), service)

    with loader() as one:
        whole = [repr(item) for item in one]
    for taken in range(len(whole) + 1) if not workers else (0, 1, 4, len(whole)):
        with loader() as one:
            stream = iter(one)
            first = [repr(item) for item in islice(stream, taken)]
            state = one.state_dict()
        with loader() as other:
            other.load_state_dict(state)
            if taken < len(whole):
                assert first + [repr(item) for item in other] == whole


def test_L2_a_node_with_state_after_an_exception_behind_it() -> None:
    def refuse(pair: Any) -> Any:
        if pair[0] == 6:
            raise ValueError("not this one")
        return pair

    def loader() -> DataLoader2[Any]:
        return DataLoader2(Numbered(IterableWrapper(range(9))).map(refuse))

    failing = loader()
    got = []
    with pytest.raises(ValueError, match="not this one"):
        for pair in failing:
            got.append(pair)
    assert got == [(n + 1, n) for n in range(5)]
    other = loader()
    other.load_state_dict(failing.state_dict())
    with pytest.raises(ValueError, match="not this one"):
        next(iter(other))


# --- functions with state


class Count:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: Any) -> Any:
        self.calls += 1
        return self.calls, item

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


class _Apply(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            for fn in self.node.fns:  # type: ignore[union-attr]
                item = fn(item)
            yield item


class Apply(IterDataPipe[Any]):
    iterator = _Apply

    def __init__(self, datapipe: Any, *fns: Any) -> None:
        self.datapipe = datapipe
        self.fns = fns


class ApplyPlainly(IterDataPipe[Any]):
    """Resumed by replay."""

    def __init__(self, datapipe: Any, *fns: Any) -> None:
        self.datapipe = datapipe
        self.fns = fns

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            for fn in self.fns:
                item = fn(item)
            yield item


class ApplyInSteps(IterDataPipe[Any]):
    """Has a state of its own, which says nothing of its functions."""

    def __init__(self, datapipe: Any, *fns: Any) -> None:
        self.datapipe = datapipe
        self.fns = fns
        self.rest: Iterator[Any] | None = None

    def __iter__(self) -> Any:
        self.rest = iter(self.datapipe)
        return self

    def __next__(self) -> Any:
        assert self.rest is not None
        item = next(self.rest)
        for fn in self.fns:
            item = fn(item)
        return item

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("kind", [Apply, ApplyPlainly, ApplyInSteps])
def test_functions_with_state_belong_to_the_pass_and_are_saved(kind: Any) -> None:
    count, other = Count(), Count()

    def graph() -> Any:
        return kind(CountingSource(range(8)), count, other, count)

    check_node(graph)
    expected = [(2 * n + 2, (n + 1, (2 * n + 1, n))) for n in range(8)]
    assert list(graph()) == expected
    assert list(graph()) == expected
    assert count.calls == other.calls == 0


@pytest.mark.parametrize("kind", [Apply, ApplyPlainly])
def test_L1_L2_functions_with_state_in_workers_and_the_next_epoch(kind: Any) -> None:
    def graph() -> Any:
        return kind(IterableWrapper(range(10)).sharding_filter(), Count())

    with make_loader(graph(), InProcessReadingService(num_shards=2)) as loader:
        epochs = [list(loader), list(loader)]
    with make_loader(graph(), make_service(2, 2)) as loader:
        assert list(loader) == epochs[0]
        assert list(islice(loader, 3)) == epochs[1][:3]
        state = loader.state_dict()
    with make_loader(graph(), make_service(1, 2)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == epochs[1][3:]


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.by = torch.nn.Parameter(torch.ones(1000))

    def forward(self, item: Any) -> Any:
        return item * 2


class Remembering(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, item: Any) -> Any:
        self.calls += 1
        return item, self.calls

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]


def test_L8_a_module_is_a_function_and_its_weights_are_in_no_state() -> None:
    loader = DataLoader2(IterableWrapper(range(4)).map(Scaled()))
    next(iter(loader))
    state = loader.state_dict()
    assert len(state["payload"]) < 1000
    other = DataLoader2(IterableWrapper(range(4)).map(Scaled()))
    other.load_state_dict(state)
    assert list(other) == [2, 4, 6]


def test_L2_L8_a_module_that_has_more_to_save_is_saved_as_plain_data() -> None:
    check_node(lambda: CountingSource(range(5)).map(Remembering()))


# --- sharding points of one's own


class _EveryNth(NodeIterator[Any]):
    saved = ("seen",)
    seen = 0

    def run(self) -> Iterator[Any]:
        parts, part = self.context.num_shards, self.context.shard
        for item in self.source.items():
            self.seen += 1
            if (self.seen - 1) % parts == part:
                yield item


class Divides(IterDataPipe[Any]):
    iterator = _EveryNth
    divides = True

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __len__(self) -> int:
        return len(self.datapipe)


class _Told(NodeIterator[Any]):
    saved = ("seen",)
    seen = 0

    def run(self) -> Iterator[Any]:
        node: Any = self.node
        for item in islice(self.source.items(), None):
            self.seen += 1
            if (self.seen - 1) % node.parts == node.part:
                yield item


class IsTold(IterDataPipe[Any]):
    """Torch's protocol with an iterator of torchpipe's."""

    iterator = _Told

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.parts, self.part = 1, 0

    def apply_sharding(self, parts: int, part: int, group: Any = None) -> None:
        self.parts, self.part = parts, part

    def __len__(self) -> int:
        return len(range(self.part, len(self.datapipe), self.parts))


@pytest.mark.parametrize("kind", [Divides, IsTold])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_L1_a_sharding_point_of_ones_own_divides_and_is_counted_once(kind: Any, shards: int) -> None:
    def graph() -> Any:
        return kind(IterableWrapper(range(10))).map(lambda n: n + 100)

    with make_loader(graph(), InProcessReadingService(num_shards=shards)) as loader:
        assert len(loader) == 10
        items = list(loader)
    assert sorted(items) == [n + 100 for n in range(10)]
    if shards > 1:
        with make_loader(graph(), make_service(2, shards)) as loader:
            assert list(loader) == items
    check_node(lambda: kind(CountingSource(range(9))), pulls=lambda k: 9)


class DoesNotDivide(Divides):
    iterator = _Numbered


def test_check_node_sees_a_sharding_point_that_does_not_divide() -> None:
    with pytest.raises(AssertionError, match="2 shards together do not give each item once"):
        check_node(lambda: DoesNotDivide(CountingSource(range(6))))


# --- inputs by name


class _Join(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        left, right = self.inputs
        yield from zip(left.items(), right.items())


class Halves(IterDataPipe[Any]):
    iterator = _Join
    inputs = ("left", "right")

    def __init__(self, left: Any, right: Any) -> None:
        self.right = right
        self.left = left


@pytest.mark.parametrize("shards", [1, 2])
def test_inputs_come_in_the_order_of_their_names_as_often_as_they_are_held(shards: int) -> None:
    letters = IterableWrapper("abcdef")
    graph = Halves(letters, IterableWrapper(range(6)))
    assert [type(item.iterable) for item in inputs_of(graph)] == [str, range]  # type: ignore[attr-defined]
    assert list(graph) == list(zip("abcdef", range(6)))
    assert list(Halves(letters, letters)) == list(zip("abcdef", "abcdef"))
    check_node(lambda: Halves(CountingSource(range(6)), CountingSource(range(6))))
    shuffled = IterableWrapper(range(8)).shuffle()
    twice = Halves(shuffled, shuffled).sharding_filter()
    with make_loader(twice, InProcessReadingService(num_shards=shards)) as loader:
        assert all(left == right for left, right in loader)


def test_a_name_that_holds_no_node_is_refused() -> None:
    with pytest.raises(GraphError, match=r"Halves.inputs names 'right', which holds \[1, 2\] and no node"):
        iterate(Halves(IterableWrapper("ab"), [1, 2]))


def test_a_node_held_in_an_attribute_that_is_not_named_is_refused() -> None:
    graph = Halves(IterableWrapper("ab"), IterableWrapper("cd"))
    graph.other = IterableWrapper("ef")  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match="where no input is looked for"):
        iter(graph)


# --- names


@pytest.mark.parametrize(
    "name",
    ["items", "state_later", "drop", "source", "draw_from_process", "node", "pass_engine", "with_retries", "untimed"],
)
def test_a_class_that_takes_a_name_of_the_engine_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"attribute '{name}', which every NodeIterator has"):
        type("Mine", (_Numbered,), {name: []})
    with pytest.raises(TypeError, match=f"attribute '{name}', which every NodeIterator has"):
        type("Mine", (_Numbered,), {"saved": (name,)})


@pytest.mark.parametrize("name", ["current", "run", "leave_out", "lost", "close"])
def test_a_value_in_the_place_of_a_method_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"attribute '{name}', which every NodeIterator has"):
        type("Mine", (_Numbered,), {name: None})


def test_what_authors_may_define_is_there_to_be_defined() -> None:
    assert [name for name in _OF_AUTHORS if not hasattr(NodeIterator, name)] == []


def test_an_attribute_over_a_method_is_refused_when_the_pass_begins() -> None:
    class Mine(_Numbered):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.items = []  # type: ignore[assignment, method-assign]

    class Node(Numbered):
        iterator = Mine

    with pytest.raises(TypeError, match=r"Mine sets self\.items, which is a method of every NodeIterator"):
        iterate(Node(IterableWrapper("ab")))


def test_names_that_look_private_are_an_authors_own() -> None:
    class Mine(NodeIterator[Any]):
        saved = ("_stream", "_closed", "_functions", "_kinds")
        _stream, _closed, _functions, _kinds = 0, 1, 2, 3

        def run(self) -> Iterator[Any]:
            for item in self.source.items():
                self._stream, self._closed = self._closed, self._stream + self._functions
                yield item, self._stream, self._closed, self._kinds

    class Node(Numbered):
        iterator = Mine

    check_node(lambda: Node(CountingSource(range(6))))


# --- many things beside an input


class _Chain(NodeIterator[Any]):
    def run(self) -> Iterator[Any]:
        yield from itertools.chain.from_iterable(item.items() for item in self.inputs)


class Holder:
    def __init__(self, *held: Any) -> None:
        self.words = {f"word {n}": n for n in range(20_000)}
        self.held = held


class Chain(IterDataPipe[Any]):
    iterator = _Chain

    def __init__(self, held: Any) -> None:
        self.held = held


def test_inputs_beside_long_lists_are_found() -> None:
    graph = Chain({"names": list(range(1000)), "more": [str(n) for n in range(1000)], "source": IterableWrapper("ab")})
    assert list(graph) == ["a", "b"]


def test_a_node_in_an_object_beside_many_words_is_refused() -> None:
    with pytest.raises(GraphError, match="where no input is looked for"):
        iter(Chain(Holder(IterableWrapper("ab"))))


class Countdown(IterDataPipe[int]):
    """As torch's nodes are written that begin anew by ``reset()``."""

    def __init__(self) -> None:
        self.left = 0

    def reset(self) -> None:
        self.left = 3

    def __iter__(self) -> Iterator[int]:
        while self.left:
            self.left -= 1
            yield self.left


class StatefulCountdown(Countdown):
    def state_dict(self) -> dict[str, int]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.left = state["left"]


class Named(Countdown):
    """Its own method has torch's name alone."""

    def reset(self, left: int) -> None:  # type: ignore[override]
        self.left = left


@pytest.mark.parametrize("make", [Countdown, StatefulCountdown])
def test_L2_reset_is_called_before_each_pass_and_not_behind_a_state(make: Any) -> None:
    loader = DataLoader2(make())
    assert [list(loader), list(loader)] == [[2, 1, 0]] * 2
    stream = iter(loader)
    assert next(stream) == 2
    resumed = DataLoader2(make())
    resumed.load_state_dict(loader.state_dict())
    assert [list(resumed), list(resumed)] == [[1, 0], [2, 1, 0]]
    assert list(DataLoader2(Named())) == []


class Helper:
    def __init__(self) -> None:
        self.rows, self.count = [[1], [2]], 0


class Changes:
    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.order, self.held, self.names, self.tensor = np.arange(6), Helper(), ["a"], torch.zeros(2)
        self.by_name = {"x": [1]}
        self.change = change

    def __iter__(self) -> Iterator[int]:
        self.change(self)
        yield 1


class ChangesNode(IterDataPipe[int]):
    __init__ = Changes.__init__
    __iter__ = Changes.__iter__


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda node: np.random.shuffle(node.order), r"\.order in place"),
        (lambda node: node.tensor.add_(1), r"\.tensor in place"),
        (lambda node: node.held.rows[0].append(3), r"\.held\.rows\[0\] in place"),
        (lambda node: setattr(node.held, "count", 1), r"\.held in place"),
        (lambda node: node.by_name["x"].append(2), r"\.by_name\['x'\] in place"),
        (lambda node: node.names.append("b"), ""),
        (lambda node: node.by_name.clear(), ""),
        (lambda node: setattr(node, "late", [1]), ""),
    ],
)
@pytest.mark.parametrize("wraps", [False, True])
def test_L7_a_change_of_what_passes_share_is_told_by_name(
    change: Any, told: str, wraps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    node: Any = type("OfThisTest", (Changes if wraps else ChangesNode,), {})(change)  # a class is told of once
    list(DataLoader2(IterableWrapper(node) if wraps else node))
    assert ("in place, which all passes" in caplog.text) == bool(told)
    assert re.search(told, caplog.text)
