"""Which nodes are a node's inputs: looked for through containers, cheaply; what escapes is refused when iterated."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe as TorchIterDataPipe
from torch.utils.data.datapipes import iter as torch_iter

from torchpipe import DataLoader2, IterDataPipe
from torchpipe.errors import GraphError
from torchpipe.graph import replace_node, walk
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.containers import DEEP, SHORT, found_in
from torchpipe.node.datapipe import iterate
from torchpipe.node.traits import inputs_of


def source(length: int = 4) -> Any:
    return IterableWrapper(range(length))


class Pair(NamedTuple):
    weight: float
    datapipe: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    name: str
    datapipe: Any


class Holder(IterDataPipe[Any]):
    """Reads all nodes that it holds, one after the other, wherever they are."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Iterator[Any]:
        for node in found_in(self.held, lambda item: isinstance(item, TorchIterDataPipe)):
            yield from node


HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "pairs": lambda a, b: [("a", a), (0.3, b)],
    "after a number": lambda a, b: [1, a, None, b],
    "dict of pairs": lambda a, b: {"x": 1, "y": (0.5, a), "z": {"deep": [b]}},
    "keys": lambda a, b: {a: 0.5, b: 0.5},
    "after a dict of data": lambda a, b: ({"data": 1}, a, "text", b),
    "named tuples": lambda a, b: [Pair(0.5, a), Pair(0.5, b)],
    "dataclasses": lambda a, b: [Part("a", a), Part("b", b)],
    "ordered": lambda a, b: collections.OrderedDict(n=1, a=a, b=b),
    "defaults": lambda a, b: collections.defaultdict(list, {"n": [1], "a": [a], "b": [2, b]}),
    "deque": lambda a, b: collections.deque([0, a, b], maxlen=3),
    "namespace": lambda a, b: types.SimpleNamespace(rate=1.0, a=a, b=b),
    "far behind": lambda a, b: [*range(SHORT - 1), a, *range(SHORT - 1), b],
    "many": lambda a, b: [(n, a if n % 2 else b) for n in range(1, 5 * SHORT)][:3],
}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_inputs_are_found_and_replaced_wherever_they_stand(hold: Callable[[Any, Any], Any]) -> None:
    one, other = source(), source(9)
    node = Holder(hold(one, other))
    assert {id(item) for item in inputs_of(node)} == {id(one), id(other)}
    new = source(2)
    changed: Any = replace_node(node, one, new)
    assert type(changed.held) is type(node.held)
    assert {id(item) for item in inputs_of(changed)} == {id(new), id(other)}
    assert len(walk(node)) == 3


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_L1_their_streams_belong_to_the_pass(hold: Callable[[Any, Any], Any]) -> None:
    graph = Holder(hold(source(20).shuffle().sharding_filter(), source(30).shuffle().sharding_filter()))
    first, again = (list(iterate(graph, seed=3)) for _ in range(2))
    assert first == again
    shares = [list(iterate(graph, seed=3, shard=shard, num_shards=2)) for shard in range(2)]
    assert sorted(shares[0] + shares[1]) == sorted(first)


def test_what_is_not_replaced_is_the_same_object() -> None:
    data, row = [1, 2, 3], ("x", object())
    node = Holder({"data": data, "row": row, "input": [source()]})
    changed: Any = replace_node(node, inputs_of(node)[0], source(9))
    assert changed.held["data"] is data
    assert changed.held["row"] is row
    assert node.held["input"][0] is inputs_of(node)[0]


def test_a_container_that_holds_itself_is_looked_through_once() -> None:
    held: list[Any] = [1, source()]
    held.append(held)
    assert list(found_in(held, lambda item: isinstance(item, IterDataPipe))) == [held[1]]


def test_L5_a_million_rows_are_not_walked() -> None:
    looked_at = []

    class Row:
        @property
        def __class__(self) -> Any:  # what isinstance() asks for
            looked_at.append(1)
            return Row

    assert inputs_of(IterableWrapper([Row()] * 10**6)) == []
    assert inputs_of(IterableWrapper([("name", Row())] * 10**6)) == []
    assert len(looked_at) < 10 * SHORT


@pytest.mark.parametrize("count", [SHORT - 10, 5 * SHORT])
def test_as_many_pairs_as_there_are_hold_inputs(count: int) -> None:
    for held in (Pair(1.0, source(1)), (1.0, source(1)), {"weight": (1.0, {}), "node": [source(1)]}):
        node = Holder([copy.copy(held) for _ in range(count)])
        assert len(list(found_in(node.held, lambda item: isinstance(item, IterDataPipe)))) == count
    assert len(list(DataLoader2(Holder([(1.0, source(1)) for _ in range(count)])))) == count


leaves = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just("node"))
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, st.floats(), inner),
        st.builds(Part, st.text(max_size=2), inner),
    ),
    max_leaves=20,
)


def _with_nodes(value: Any, made: list[Any]) -> Any:
    if value == "node":
        made.append(source())
        return made[-1]
    if isinstance(value, Pair):
        return Pair(value.weight, _with_nodes(value.datapipe, made))
    if isinstance(value, Part):
        return Part(value.name, _with_nodes(value.datapipe, made))
    if isinstance(value, list | tuple):
        return type(value)([_with_nodes(item, made) for item in value])
    if isinstance(value, dict):
        return {key: _with_nodes(item, made) for key, item in value.items()}
    return value


@given(nested)
def test_every_node_in_a_nest_is_an_input_in_order(shape: Any) -> None:
    made: list[Any] = []
    node = Holder(_with_nodes(shape, made))
    assert list(map(id, inputs_of(node))) == list(map(id, made))


# What is held where nobody looks


class Opaque:
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe


class ReadsOpaque(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.box = Opaque(datapipe)

    def __iter__(self) -> Iterator[Any]:
        yield from self.box.datapipe


class ReadsOpaqueMapped(ReadsOpaque):
    def __iter__(self) -> Iterator[Any]:
        yield from self.box.datapipe.map(str).batch(2)


class ReadsSet(IterDataPipe[Any]):
    def __init__(self, *datapipes: Any) -> None:
        self.datapipes = set(datapipes)

    def __iter__(self) -> Iterator[Any]:
        for datapipe in self.datapipes:
            yield from datapipe


class ReadsFarBehind(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.held = [*range(10 * SHORT), datapipe]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.held[-1])


class ReadsDeep(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.held = [datapipe]
        for _ in range(DEEP + 5):
            self.held = [self.held]

    def __iter__(self) -> Iterator[Any]:
        held: Any = self.held
        while isinstance(held, list):
            held = held[0]
        yield from held


class ReadsBehindItsInput(IterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe.map(str)

    def __iter__(self) -> Iterator[Any]:
        yield from self.datapipe.source


class TorchReadsOpaque(TorchIterDataPipe[Any]):
    def __init__(self, datapipe: Any) -> None:
        self.box = Opaque(datapipe)

    def __iter__(self) -> Iterator[Any]:
        yield from self.box.datapipe


@pytest.mark.parametrize(
    "kind",
    [
        ReadsOpaque,
        ReadsOpaqueMapped,
        ReadsSet,
        ReadsFarBehind,
        ReadsDeep,
        TorchReadsOpaque,
    ],
)
def test_a_hidden_input_is_an_error_that_names_both(kind: Any) -> None:
    graph = kind(source().shuffle()).sharding_filter() if kind is not TorchReadsOpaque else kind(source().shuffle())
    with pytest.raises(GraphError, match=rf"{kind.__name__} holds Shuffler where no input"):
        DataLoader2(graph)
    if kind is not TorchReadsOpaque:
        with pytest.raises(GraphError, match="where no input is looked for"):
            iterate(graph)
        with pytest.raises(GraphError, match="where no input is looked for"):
            iter(graph)


def test_a_node_behind_an_input_is_an_error_that_names_all_three() -> None:
    graph = ReadsBehindItsInput(source().shuffle()).sharding_filter()
    with pytest.raises(GraphError, match=r"ReadsBehindItsInput asks its input Mapper for Shuffler"):
        list(DataLoader2(graph))


def total(node: Any) -> int:
    return sum(node)


class Table:
    """A function that has a pipeline of its own."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe

    def __call__(self, item: int) -> int:
        return item + sum(self.datapipe)


class Makes(IterDataPipe[Any]):
    """Makes pipelines of its own while it runs, of its inputs and of other things."""

    def __init__(self, datapipe: Any) -> None:
        self.datapipe = datapipe
        self.table = SequenceWrapper([5, 6])

    def __iter__(self) -> Iterator[Any]:
        yield from IterableWrapper([1, 2]).map(abs)
        yield from self.table.to_iter_datapipe()
        yield from self.datapipe.map(abs).batch(2)
        self.made = IterableWrapper([9])
        yield from self.made


class Whole:
    """A user's own object around a pipeline, which its nodes know."""

    def __init__(self) -> None:
        self.graph = Knows(source(), self).map(str)


class Knows(Makes):
    def __init__(self, datapipe: Any, whole: Whole) -> None:
        super().__init__(datapipe)
        self.whole = whole


def test_an_object_that_holds_the_whole_pipeline_is_no_input() -> None:
    assert len(list(DataLoader2(Whole().graph))) == 7


def test_passes_of_their_own_are_nobodys_inputs() -> None:
    data = source()
    assert list(iterate(source(2).map(lambda item: item + sum(data)))) == [6, 7]
    assert list(iterate(data.map(lambda item: item + sum(data)))) == [6, 7, 8, 9]
    assert list(iterate(data.map(Table(data)))) == [6, 7, 8, 9]
    assert list(iterate(source(3).flatmap(lambda item: source(item)))) == [0, 0, 1]
    assert list(iterate(IterableWrapper([data, data], deepcopy=False).map(total))) == [6, 6]
    assert list(iterate(Makes(data))) == [1, 2, 5, 6, [0, 1], [2, 3], 9]


def test_a_function_of_a_library_node_within_a_users_pass_may_iterate_what_it_likes() -> None:
    data = source()
    graph = Makes(data.map(lambda item: item + sum(data)))
    assert list(iterate(graph))[4:6] == [[6, 7], [8, 9]]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(torch_iter.Forker, (2,)), (torch_iter.Demultiplexer, (2, bool))],
    ids=["Forker", "Demultiplexer"],
)
def test_torchs_nodes_of_several_outputs_are_refused_by_name(kind: Any, arguments: tuple[Any, ...]) -> None:
    outputs = kind(source().sharding_filter(), *arguments)
    name = kind.__name__.removesuffix("IterDataPipe")
    message = rf"{name} of torch or torchdata cannot stand in a graph.*source\.fork\(2\)"
    for graph in (Holder(outputs), outputs[0], source().zip(outputs[1]), Holder({"one": outputs[0]})):
        with pytest.raises(GraphError, match=message):
            DataLoader2(graph)
    with pytest.raises(GraphError, match=message):
        iter(source().zip(outputs[0]))


class MakesMany(IterDataPipe[Any]):
    """Makes a small pipeline for every item, and holds much data."""

    def __init__(self, datapipe: Any, data: Any) -> None:
        self.datapipe = datapipe
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        for item in self.datapipe:
            yield from IterableWrapper([item]).map(str)


def test_what_a_node_holds_is_looked_through_once_in_a_pass() -> None:
    looked_at = []

    class Row:
        def __getattribute__(self, name: str) -> Any:
            looked_at.append(name)
            return super().__getattribute__(name)

    rows = [Row() for _ in range(50)]
    counts = []
    for length in (1, 100):
        looked_at.clear()
        assert len(list(MakesMany(source(length), Opaque(rows)))) == length
        counts.append(len(looked_at))
    assert counts[0] == counts[1]
