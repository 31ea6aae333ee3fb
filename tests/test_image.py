"""Each pass begins from the objects as they were given, whatever they are and whoever runs it."""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.kills import Kill, run_with_kills
from torchpipe import DataLoader2, InProcessReadingService, IterDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.node.image import Image

ITEMS = 6


class Thing:
    def __init__(self, inner: Any) -> None:
        self.inner, self.count = inner, 0

    def step(self) -> str:
        self.count += 1
        return f"{self.count}"


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Words(dict[str, Any]):
    """A subclass, with an attribute."""

    times = 0


Pair = collections.namedtuple("Pair", "left right")
LEAVES = ["number", "array", "tensor", "random", "numpy", "torch", "bytes", "deque", "large"]
HOLDERS = ["list", "dict", "words", "thing", "slotted", "tuple", "method", "again"]
SPECS = st.recursive(
    st.sampled_from(LEAVES), lambda inner: st.tuples(st.sampled_from(HOLDERS), inner, inner), max_leaves=8
)
EVERYTHING = (
    "list",
    ("words", "array", ("thing", "random", "numpy")),
    ("again", ("slotted", "torch", "tensor"), "large"),
)


def build(spec: Any) -> Any:
    if isinstance(spec, str):
        return {
            "number": lambda: Thing(None),
            "array": lambda: np.arange(4),
            "tensor": lambda: torch.arange(4),
            "random": lambda: random.Random(1),
            "numpy": lambda: np.random.default_rng(2),
            "torch": lambda: torch.Generator().manual_seed(3),
            "bytes": lambda: bytearray(b"ab"),
            "deque": lambda: collections.deque([1, 2, 3]),
            "large": lambda: np.zeros(20_000),
        }[spec]()
    kind, left, right = spec[0], build(spec[1]), build(spec[2])
    if kind == "method":
        return [left, Thing(right).step]
    if kind == "again":  # one object by two ways
        return {"one": left, "other": [left, Thing(left)], "right": right}
    return {
        "list": lambda: [left, right],
        "dict": lambda: {"left": left, 2: right},
        "words": lambda: Words(left=left, right=right),
        "thing": lambda: Thing([left, right]),
        "slotted": lambda: Slotted([left, right]),
        "tuple": lambda: Pair(left, right),
    }[kind]()


def used(value: Any) -> Any:
    """Change all that is in ``value`` in place, as often as it is reached, and say what is there."""
    if isinstance(value, np.ndarray | torch.Tensor):
        value += 1
        return value[:4].tolist()
    if isinstance(value, random.Random):
        return value.random()
    if isinstance(value, np.random.Generator):
        return float(value.random())
    if isinstance(value, torch.Generator):
        return float(torch.rand((), generator=value))
    if isinstance(value, bytearray):
        value.append(len(value))
        return bytes(value)
    if isinstance(value, collections.deque):
        value.rotate()
        return list(value)
    if isinstance(value, list | tuple):
        return [used(item) for item in value]
    if isinstance(value, dict):
        if isinstance(value, Words):
            value.times += 1
        return [used(item) for item in list(value.values())] + [getattr(value, "times", 0)]
    if callable(value):
        return value()
    if isinstance(value, Thing):
        return value.step(), used(value.inner)
    return used(value.inner) if isinstance(value, Slotted) else value


def items_of(owner: Any) -> Iterator[Any]:
    for number in range(owner.items):
        yield number, repr(used(owner.value))


class Own(IterDataPipe[Any]):
    items = ITEMS

    def __init__(self, spec: Any) -> None:
        self.value = build(spec)

    def __iter__(self) -> Iterator[Any]:
        return items_of(self)


class Iterable:
    items = ITEMS

    def __init__(self, spec: Any) -> None:
        self.value = build(spec)

    def __iter__(self) -> Iterator[Any]:
        return items_of(self)


class Calls:
    """A function that remembers, and says nothing of it."""

    def __init__(self, spec: Any) -> None:
        self.value = build(spec)

    def __call__(self, number: int) -> Any:
        return number, repr(used(self.value))


def source(kind: str, spec: Any) -> Any:
    return Own(spec) if kind == "node" else IterableWrapper(Iterable(spec))


def alone(spec: Any) -> list[Any]:
    return list(Iterable(spec))


@pytest.mark.filterwarnings("ignore::torchpipe.errors.ReplayWarning")
@settings(max_examples=25, deadline=None)
@given(spec=SPECS, kind=st.sampled_from(["node", "iterable"]), at=st.sampled_from([0, ITEMS // 2, ITEMS]))
def test_L1_L2_two_shards_of_one_process_two_epochs_and_resumes(spec: Any, kind: str, at: int) -> None:
    expected, graph = alone(spec), source(kind, spec).sharding_filter()
    loader = DataLoader2(graph, reading_service=InProcessReadingService(num_shards=2))
    states = []
    for _ in range(2):
        stream = iter(loader)
        got = [next(stream) for _ in range(at)]
        states.append(loader.state_dict())
        assert got + list(stream) == expected
    for state in states:
        other = DataLoader2(source(kind, spec).sharding_filter(), reading_service=InProcessReadingService(num_shards=2))
        other.load_state_dict(state)
        assert list(other) == expected[at:]
    assert alone(spec) == list(iterate(source(kind, spec)))


@pytest.mark.parametrize("kind", ["node", "iterable"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_L1_in_workers(kind: str, method: str) -> None:
    expected = alone(EVERYTHING)
    for workers in (1, 2):
        graph = source(kind, EVERYTHING).sharding_filter()
        with make_loader(graph, make_service(workers, 2, every=1, context=method)) as loader:
            assert [list(loader), list(loader)] == [expected, expected]


class LongOwn(Own):
    items = 200


def test_L4_a_successor_begins_from_the_same() -> None:
    expected = oracle(LongOwn(EVERYTHING).sharding_filter(), 2, epochs=2)
    assert expected[0] == expected[1]
    for epoch in range(2):
        with make_loader(LongOwn(EVERYTHING).sharding_filter(), make_service(2, 2, every=1)) as loader:
            assert run_with_kills(loader, 2, [Kill(epoch, 10, 0, "SIGKILL")]) == expected


@settings(max_examples=25, deadline=None)
@given(spec=SPECS)
def test_L1_a_function_that_remembers_begins_anew(spec: Any) -> None:
    calls = Calls(spec)
    graph = IterableWrapper(range(ITEMS)).map(calls)
    loader = DataLoader2(graph)
    assert [list(loader), list(loader)] == [alone(spec), alone(spec)]
    assert [list(iterate(graph.cycle(2)))] == [alone(spec) * 2]


def test_one_object_in_two_nodes_is_one_and_ends_with_the_pass() -> None:
    class Seen:
        def __init__(self) -> None:
            self.seen: set[int] = set()

        def __call__(self, item: int) -> tuple[int, bool]:
            is_new = item not in self.seen
            self.seen.add(item)
            return item, is_new

        def few(self, _: Any) -> bool:
            return len(self.seen) < 3

    seen = Seen()
    loader = DataLoader2(IterableWrapper([1, 1, 2, 3, 4]).map(seen).filter(seen.few))
    assert [list(loader), list(loader)] == [[(1, True), (1, False), (2, True)]] * 2
    assert not seen.seen


def test_what_the_user_changes_after_the_loader_was_made_changes_no_pass() -> None:
    calls = Thing(None)
    loader = DataLoader2(IterableWrapper(range(2)).map(Factor(calls)))
    calls.count = 7
    assert list(loader) == [0, 0]


class Factor:
    def __init__(self, thing: Thing) -> None:
        self.thing = thing

    def __call__(self, item: int) -> int:
        return item * self.thing.count


def shared() -> Any:
    made: Any = torch.zeros(3)
    return made.share_memory_()


class Rows(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


def test_by_reference_go_code_modules_data_by_index_and_what_cannot_be_pickled() -> None:
    held = {
        "lambda": lambda item: item,
        "class": type("Local", (), {}),
        "module": torch.nn.Linear(1, 1),
        "rows": Rows(),
        "lock": threading.Lock(),
        "generator": iter(item for item in "ab"),
        "shared": shared(),
        "global": np.random.mtrand,
        "constant": np.broadcast_to(np.arange(2), (3, 2)),
    }
    node = Own("number")
    node.value = held
    (copied,) = Image((node,)).load()
    assert copied is not node
    assert copied.value is not held
    assert all(copied.value[name] is value for name, value in held.items())


def test_views_look_into_the_copy() -> None:
    node = Own("number")
    array, tensor = np.arange(6), torch.arange(6)
    node.value = [array, array[1:3], array[::-2], tensor, tensor[2:4], tensor.view(2, 3).T]
    (copied,) = Image((node,)).load()
    array_, part, back, tensor_, row, turned = copied.value
    array_[:], tensor_[:] = 9, 9
    assert part.tolist() == [9, 9]
    assert back.tolist() == [9, 9, 9]
    assert row.tolist() == [9, 9]
    assert turned.tolist() == [[9, 9]] * 3
    assert array.tolist() == tensor.tolist() == list(range(6))


def test_nothing_is_copied_where_no_pass_changes_anything() -> None:
    rows = [{"row": row} for row in range(1000)]
    graph = IterableWrapper(rows).map(len).filter(torch.nn.Identity()).batch(2).shuffle()
    numbers = list(range(1000))
    image = Image((graph,))
    assert image.changing == set()
    assert image.load() is image.nodes
    changing = Image((IterableWrapper(numbers).map(Calls("number")),))
    assert changing.load()[0] is changing.nodes[0]
    assert changing.load()[1] is not changing.nodes[1]


def test_torchs_reset_is_called_as_a_pass_begins() -> None:
    class Countdown(IterDataPipe[int]):
        def __init__(self) -> None:
            self.left = 0

        def reset(self) -> None:
            self.left = 3

        def __iter__(self) -> Iterator[int]:
            while self.left:
                self.left -= 1
                yield self.left

    loader = DataLoader2(Countdown())
    assert [list(loader), list(loader)] == [[2, 1, 0]] * 2
