"""The identity of a graph: the same in every process, different where the stream is, blind to where data lies."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import operator
import os
import re
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from torchpipe import IterDataPipe
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.fingerprint import describe_graph, fingerprint


def source(items: Any = range(10)) -> Any:
    return IterableWrapper(items)


class Node(IterDataPipe[Any]):
    """Holds anything."""

    def __init__(self, **arguments: Any) -> None:
        vars(self).update(arguments)


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, item: int) -> int:
        return item * self.factor


SCRIPT = """
    from torchpipe.node.fingerprint import fingerprint
    from tests.graph.test_fingerprint import rich_graph
    print(fingerprint(rich_graph()))
"""


def rich_graph() -> Any:
    """A graph of many arguments, among them such as Python orders or prints anew in every process."""
    graph = source([{"a", "b", "c"}, object()]).shuffle(buffer_size=7).sharding_filter()
    graph = graph.map(Scale(2)).map(lambda item: item).map(functools.partial(abs)).batch(3)
    return Node(
        graph=graph,
        names=frozenset("abcdef"),
        table={"x": 1, "y": [source()]},
        text="long " * 100,
        array=np.zeros(3),
        tensor=torch.zeros(2, 2),
        dtype=torch.float32,
        kind=Scale,
        thing=object(),
        plain=(1, 2.5, None, True, "a"),
    )


def test_it_is_the_same_in_every_process() -> None:
    for seed in ["1"] if os.environ.get("PYTHONHASHSEED") != "1" else ["2"]:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        assert done.stdout.strip() == fingerprint(rich_graph())


def test_it_shows_no_addresses() -> None:
    assert "0x" not in describe_graph(rich_graph())


def test_the_description_has_a_line_for_each_node() -> None:
    trunk = source().sharding_filter()
    text = describe_graph(trunk.map(abs).zip(trunk.map(str, input_col=0)))
    assert text.splitlines() == [
        "0 IterableWrapper(deepcopy=True, iterable=range(0, 10))",
        "1 ShardingFilter(sharding_group_filter=None) <- 0",
        "2 Mapper(fn=abs, input_col=None, output_col=None) <- 1",
        "3 Mapper(fn=str, input_col=0, output_col=None) <- 1",
        "4 Zipper(datapipes=(#2, #3), strict=False) <- 2 3",
    ]


def test_it_does_not_see_what_only_moves_items() -> None:
    plain = source().sharding_filter().batch(2).map(len)
    moved = source().prefetch(3).sharding_filter().batch(2).prefetch(1).to_device("cpu").map(len).prefetch(9)
    assert fingerprint(moved) == fingerprint(plain)


@pytest.mark.parametrize(
    "other",
    [
        source(range(11)).shuffle(buffer_size=5).map(abs),
        source().shuffle(buffer_size=6).map(abs),
        source().shuffle(buffer_size=5).map(str),
        source().shuffle(buffer_size=5).map(Scale(1)),
        source().shuffle(buffer_size=5).map(lambda item: item),
        source().shuffle(buffer_size=5).map(functools.partial(abs)),
        source().shuffle(buffer_size=5).map(abs, input_col=0),
        source().shuffle(buffer_size=5).filter(abs),
        source().map(abs).shuffle(buffer_size=5),
        source().shuffle(buffer_size=5).map(abs).map(abs),
        source().shuffle(buffer_size=5).shuffle(buffer_size=5).map(abs),
        source().shuffle(buffer_size=5).set_shuffle(False).map(abs),
        source().shuffle(buffer_size=5).set_seed(1).map(abs),
        source(list(range(10))).shuffle(buffer_size=5).map(abs),
        source().shuffle(buffer_size=5),
    ],
)
def test_it_changes_with_arguments_functions_and_order(other: Any) -> None:
    graph = source().shuffle(buffer_size=5).map(abs)
    assert fingerprint(graph) == fingerprint(source().shuffle(buffer_size=5).map(abs))
    assert fingerprint(other) != fingerprint(graph)


class Held:
    """A callable object: what it was given, what it has learnt, and what it only keeps."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __call__(self, item: int) -> int:
        return item

    def method(self, item: int) -> int:
        return item


class Counting(Held):
    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, item: int) -> int:
        return item * self.factor


@dataclasses.dataclass(frozen=True)
class Config:
    size: int
    names: tuple[str, ...] = ()


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    """No function, and nothing but plain values in it."""

    def __init__(self, size: Any) -> None:
        self.size = size


class Busy:
    """Holds what is at work, such as a lock: nobody can say which of its attributes are arguments."""

    def __init__(self, size: int) -> None:
        self.size, self._lock = size, threading.Lock()

    def method(self, item: int) -> int:
        return item


def scaling(by: Any, *, default: Any = 1) -> Any:
    return lambda item, bias=default: item * by + bias


def wrapped(times: int) -> Any:
    @functools.wraps(abs)
    def inner(item: int) -> int:
        return item * times

    return inner


def twice(item: int, by: int = 2) -> int:
    return item * by


BOUND = [
    (functools.partial(twice, by=2), functools.partial(twice, by=3), "partial(twice, by=2)"),
    (functools.partial(pow, 2), functools.partial(pow, 3), "partial(pow, 2)"),
    (functools.partial(max, key=abs), functools.partial(max, key=str), "partial(max, key=abs)"),
    (functools.partial(max, ["a"]), functools.partial(max, ["b"]), "partial(max, ['a'])"),
    (Held(max_len=512), Held(max_len=64), "Held(max_len=512)"),
    (Held(bos=True, eos=None), Held(bos=False, eos=None), "Held(bos=True, eos=None)"),
    (Held(to=torch.float16), Held(to=torch.float32), "Held(to=torch.float16)"),
    (Held(to=Colour.RED), Held(to=Colour.BLUE), "Held(to=Colour.RED)"),
    (Held(sizes={"a": (1, 2)}), Held(sizes={"a": (1, 3)}), "Held(sizes={'a': (1, 2)})"),
    (Held(config=Config(3)), Held(config=Config(4)), "Held(config=Config(size=3, names=()))"),
    (Held(fn=functools.partial(twice, by=2)), Held(fn=functools.partial(twice)), "Held(fn=partial(twice, by=2))"),
    (Held(model="Qwen/Qwen2"), Held(model="Qwen/Qwen3"), "Held(model='Qwen/Qwen2')"),
    (Held(scale=np.float32(0.5)), Held(scale=np.float32(0.25)), "Held(scale=0.5)"),
    (Slotted(2), Slotted(3), "Slotted(factor=2)"),
    (scaling(2), scaling(3), "<lambda>(bias=1, by=2)"),
    (scaling(2, default=1), scaling(2, default=5), "<lambda>(bias=1, by=2)"),
    (scaling(scaling(2)), scaling(scaling(3)), "<lambda>(bias=1, by=<lambda>(bias=1, by=2))"),
    (wrapped(2), wrapped(3), "abs(times=2)"),
    (functools.lru_cache(scaling(2)), functools.lru_cache(scaling(3)), "<lambda>(of=<lambda>(bias=1, by=2))"),
    (Held(size=2).method, Held(size=3).method, "Held(size=2).method"),
    (Busy(2).method, Busy(3).method, "Busy(size=2).method"),
    (Held().method, Counting().method, "Held.method"),
    (functools.partial(Held(size=2).method), functools.partial(Held(size=3).method), "partial(Held(size=2).method)"),
    ({"a": 1}.get, {"a": 2}.get, "{'a': 1}.get"),
    (operator.itemgetter("x"), operator.itemgetter("y"), "itemgetter('x')"),
    (operator.methodcaller("split", ","), operator.methodcaller("split", ";"), "methodcaller('split', ',')"),
    (Held(sizes=[2] * 9), Held(sizes=[3] * 9), "Held(sizes=[2, 2, 2, 2, 2, 2, 2, 2, 2])"),
    (Held(rows=[[1, [2]]]), Held(rows=[[1, [3]]]), "Held(rows=[[1, [2]]])"),
    (Held(names={"a", "b"}), Held(names={"a", "c"}), "Held(names=set('a', 'b'))"),
    (Held(to=slice(1)), Held(to=slice(2)), "Held(to=slice(None, 1, None))"),
    (Held(find=re.compile("a")), Held(find=re.compile("a", re.ASCII)), "Held(find=re.compile('a', 32))"),
    (Held(table=np.zeros(2)), Held(table=np.ones(2)), "Held(table=ndarray(float64, (2,), #374708fff771))"),
    (Held(mean=torch.zeros(2)), Held(mean=torch.ones(2)), "Held(mean=Tensor(torch.float32, (2,), #af5570f5a181))"),
    (Held(plain=Plain(2)), Held(plain=Plain(3)), "Held(plain=Plain(size=2))"),
    (
        Held(plain=types.SimpleNamespace(a=2)),
        Held(plain=types.SimpleNamespace(a=3)),
        "Held(plain=SimpleNamespace(a=2))",
    ),
    (torch.nn.Dropout(0.5), torch.nn.Dropout(0.25), "Dropout(inplace=False, p=0.5)"),
    (
        torch.nn.Sequential(torch.nn.Dropout(0.5)),
        torch.nn.Sequential(torch.nn.Dropout(0.25)),
        "Sequential(0=Dropout(inplace=False, p=0.5))",
    ),
    (Held(root="/data/a"), Held(root="/data/b"), "Held(root='.../a')"),
]


@pytest.mark.parametrize(("one", "other", "shown"), BOUND)
def test_values_that_are_bound_to_a_function_count_and_are_shown(one: Any, other: Any, shown: str) -> None:
    graph, changed = source().map(one), source().map(other)
    assert f"fn={shown}," in describe_graph(graph)
    assert fingerprint(graph) != fingerprint(changed)
    assert describe_graph(graph, bound=False) == describe_graph(changed, bound=False)


def counted(before: int) -> Any:
    _calls = before

    def counting(item: Any) -> Any:
        nonlocal _calls
        _calls += 1
        return item

    return counting


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Held(_seen=3), Held(_seen=4)),
        (Held(thing=object()), Held(thing=object())),
        (Held(root="/data/x"), Held(root="/mnt/there/x/")),
        (Held(root=Path("/data/x")), Held(root=Path("/mnt/there/x"))),
        (Held(url="s3://one/x?signature=1"), Held(url="s3://two/x?signature=2")),
        (Held(options=argparse.Namespace(resume=True)), Held(options=argparse.Namespace(resume=False))),
        (Held(busy=Busy(1)), Held(busy=Busy(2))),
        (Counting(calls=3), Counting(calls=4)),
        (Counting(calls=3).method, Counting(calls=4).method),
        (torch.nn.Linear(2, 3), torch.nn.Linear(2, 3).eval()),
        (scaling(object()), scaling(object())),
        (counted(3), counted(4)),
    ],
)
def test_what_may_change_between_two_runs_does_not_count(one: Any, other: Any) -> None:
    assert fingerprint(source().map(one)) == fingerprint(source().map(other))


class Tokenizer:
    """Says of itself what those of transformers do."""

    name_or_path, vocab_size = "/models/one", 9

    def __init__(self, added: int = 0, chat_template: str | None = None) -> None:
        self.added, self.chat_template, self.loaded_at = added, chat_template, object()

    def __len__(self) -> int:
        return self.vocab_size + self.added

    def __call__(self, text: Any) -> Any:
        return text

    def encode(self, text: Any) -> Any:
        return text


def test_tokenizers_count_by_name_size_and_chat_template() -> None:
    others = [Tokenizer(), Tokenizer(added=2), Tokenizer(chat_template="{{ messages }}"), Tokenizer()]
    for method in (False, True):
        found = [fingerprint(source().map(other.encode if method else other)) for other in others]
        assert len(set(found)) == 3
        assert found[0] == found[3]


def test_tokenizers_of_the_library_of_this_name_count_by_size() -> None:
    words = [{"a": 0, "b": 1}, {"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2}]
    made: list[Any] = [tokenizers.Tokenizer(tokenizers.models.WordLevel(those, unk_token="a")) for those in words]
    one, same, other = (fingerprint(source().map(tokenizer.encode)) for tokenizer in made)
    assert one == same != other
    without = functools.partial(made[0].encode, add_special_tokens=False)
    for encode in (made[0].encode, without):  # whose signature counts the object that is bound
        assert [found.ids for found in IterableWrapper(["b"]).map(encode)] == [[1]]


class Joined(IterDataPipe[Any]):
    inputs = ("one", "two", "three")

    def __init__(self, one: Any, two: Any, three: Any) -> None:
        self.one, self.two, self.three = one, two, three


def test_which_input_stands_where_counts_as_often_as_it_stands_there() -> None:
    one, other = source(), source().map(abs)
    places = [(one, other, one), (one, other, other), (one, one, other), (other, one, other)]
    assert len({fingerprint(Joined(*inputs)) for inputs in places}) == 4


def test_the_code_of_a_function_does_not_count() -> None:
    one, other = {}, {}  # type: ignore[var-annotated]
    exec("def f(x, by=1): return x", one)
    exec("def f(x, by=2, more=3): return x + 1", other)
    assert fingerprint(source().map(one["f"])) == fingerprint(source().map(other["f"]))


def test_bound_values_may_hold_each_other_and_much() -> None:
    held = Held(name="x" * 1000, many=list(range(10**6)))
    held.me = held  # type: ignore[attr-defined]
    held.rows = [held.many, held]  # type: ignore[attr-defined]
    assert len(describe_graph(source().map(held))) < 400


def test_it_changes_with_the_wiring() -> None:
    one, other = source(), source()
    fingerprints = {
        fingerprint(one.zip(one)),
        fingerprint(one.zip(other)),
        fingerprint(one.zip(other.map(abs))),
        fingerprint(one.map(abs).zip(other)),
        fingerprint(one.zip(other, one)),
    }
    assert len(fingerprints) == 5
    assert fingerprint(one.zip(other)) == fingerprint(source().zip(source()))


@pytest.mark.parametrize("value", [4, None, 2.5, True, "a", (1, 2), (0,) * 99, torch.float32, Scale(1), abs, range(3)])
def test_private_arguments_count(value: Any) -> None:
    assert fingerprint(Node(size=1, _n=value)) != fingerprint(Node(size=1, _n=3))
    assert fingerprint(Node(size=1, _n=value)) == fingerprint(Node(size=1, _n=value))


@pytest.mark.parametrize("value", [{}, {"a": 1}, [1], set(), [object()], [0] * 99, object(), iter([]), np.zeros(3)])
def test_private_containers_and_objects_may_be_caches(value: Any) -> None:
    assert fingerprint(Node(size=1, _cache=value)) == fingerprint(Node(size=1))
    assert fingerprint(Node(size=1, cache=2)) != fingerprint(Node(size=1))


def test_a_class_may_name_what_does_not_count() -> None:
    class Cached(Node):
        fingerprint_ignores = ("_length",)

    assert fingerprint(Cached(size=1, _length=None)) == fingerprint(Cached(size=1, _length=9))


class TorchRows(torch.utils.data.IterDataPipe[Any]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Any:
        yield from range(self._count)


def test_what_torch_notes_while_iterating_does_not_count() -> None:
    node, other = TorchRows(3), TorchRows(4)
    before = fingerprint(node)
    assert fingerprint(other) != before
    iterator = iter(node)
    next(iterator)
    assert fingerprint(node) == before
    assert list(node) == [0, 1, 2]
    assert fingerprint(node) == before


def test_using_a_node_does_not_change_it() -> None:
    graph = source([1, 2, 3]).shuffle().sharding_filter().batch(2).cycle(2)
    before = fingerprint(graph)
    assert len(list(graph)) == len(graph) == 4
    assert fingerprint(graph) == before
    once = source(iter([1, 2]))
    before = fingerprint(once)
    list(once)
    assert fingerprint(once) == before


def test_what_stands_beside_an_input_counts() -> None:
    def weights(first: float) -> str:
        return fingerprint(Node(pairs=[("a", source()), (first, source())], table={"x": (first, source())}))

    assert weights(0.3) == weights(0.3) != weights(0.4)


def test_long_texts_count_in_whole() -> None:
    assert fingerprint(Node(text="x" * 100 + "y")) != fingerprint(Node(text="x" * 101))
    assert len(describe_graph(Node(text="x" * 10_000))) < 100


def test_data_count_by_type_and_length_and_a_sample() -> None:
    assert fingerprint(source([1] * 9)) == fingerprint(source([1] * 9)) != fingerprint(source([2] * 9))
    assert fingerprint(source([1] * 9)) != fingerprint(source([1] * 10))
    assert fingerprint(source((1,) * 9)) != fingerprint(source([1] * 9))
    assert fingerprint(SequenceWrapper([1] * 9).to_iter_datapipe()) != fingerprint(source([1] * 9))


def test_a_long_list_is_not_walked() -> None:
    class Untouchable(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError("walked")

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("walked")

    assert f"=Untouchable[{10**6}]" in describe_graph(source(Untouchable(range(10**6))))

    touched = []

    class Element:
        def __getattribute__(self, name: str) -> Any:
            touched.append(name)
            return super().__getattribute__(name)

    assert "list[1000000]" in describe_graph(source([Element()] * 10**6))
    assert len(touched) < 20_000
