"""Changed copies of graphs: the original stays, what is shared stays shared, what is unchanged is the same object."""

from __future__ import annotations

from typing import Any

from torchpipe import DataLoader2, IterDataPipe
from torchpipe.graph import find, replace_node, rewrite, walk
from torchpipe.iter import Batcher, IterableWrapper, Mapper
from torchpipe.node.traits import with_inputs


def source(length: int = 4) -> Any:
    return IterableWrapper(range(length))


def double(item: int) -> int:
    return 2 * item


class Holder(IterDataPipe[Any]):
    """Keeps its inputs in every kind of container."""

    def __init__(self, *inputs: Any) -> None:
        self.in_list = [inputs[0], [inputs[1]]]
        self.in_dict = {"key": inputs[2], "nested": (inputs[3],)}
        self.data = [1, 2, 3]


def test_find_gives_every_node_of_a_class_inputs_first() -> None:
    first = source().map(abs)
    last = first.batch(2).map(len)
    assert find(last, Mapper) == [first, last]
    assert find(last, IterDataPipe) == walk(last)
    assert find(first, Batcher) == []


def test_nothing_changed_gives_the_same_objects() -> None:
    graph = source().map(abs).zip(source()).batch(2)
    assert rewrite(graph, lambda node: node) is graph


def test_a_change_makes_copies_of_what_reads_it_and_leaves_the_rest() -> None:
    left, right = source().map(abs), source(9)
    graph = left.zip(right).batch(2)
    before = [dict(vars(node)) for node in walk(graph)]
    doubled = rewrite(graph, lambda node: node.map(double) if node is left else node)
    assert [dict(vars(node)) for node in walk(graph)] == before
    assert list(doubled) == [[(0, 0), (2, 1)], [(4, 2), (6, 3)]]
    assert list(graph) == [[(0, 0), (1, 1)], [(2, 2), (3, 3)]]
    assert doubled is not graph
    assert any(node is right for node in walk(doubled))
    assert any(node is left for node in walk(doubled))


def test_what_is_shared_stays_shared_and_is_changed_once() -> None:
    trunk = source()
    graph = trunk.map(abs).zip(trunk.map(double), trunk)
    seen: list[Any] = []

    def change(node: Any) -> Any:
        seen.append(node)
        return IterableWrapper(range(10, 12)) if node is trunk else node

    changed = rewrite(graph, change)
    assert len(seen) == len(walk(graph)) == 4
    assert len(find(changed, IterableWrapper)) == 1
    assert list(changed) == [(10, 20, 10), (11, 22, 11)]


def test_inputs_in_containers_are_replaced() -> None:
    inputs = [source(n) for n in range(4)]
    graph = Holder(*inputs)
    new = source(9)
    for old in inputs:
        changed = replace_node(graph, old, new)
        assert isinstance(changed, Holder)
        found = walk(changed)
        assert any(node is new for node in found)
        assert not any(node is old for node in found)
        assert len(found) == 5
        assert changed.data is graph.data
    assert walk(graph)[:-1] == inputs


def test_replace_node_puts_another_in_its_place() -> None:
    old = source().map(abs)
    graph = old.batch(2)
    assert list(replace_node(graph, old, source(2))) == [[0, 1]]
    assert replace_node(graph, graph, old) is old
    assert list(graph) == [[0, 1], [2, 3]]


def test_a_node_may_be_put_before_another() -> None:
    old = source()
    assert list(replace_node(old.batch(2), old, old.map(double))) == [[0, 2], [4, 6]]


def test_a_copy_that_is_private_shares_no_container() -> None:
    node = Holder(source(), source(), source(), source())
    shared = with_inputs(node, lambda item: item)
    private = with_inputs(node, lambda item: item, private=True)
    assert shared.data is node.data
    assert private.data is not node.data
    assert private.data == node.data
    assert type(private) is Holder


def test_a_rewritten_graph_runs_in_a_loader() -> None:
    graph = source().map(abs).sharding_filter()
    changed = rewrite(graph, lambda node: with_fn(node, double) if isinstance(node, Mapper) else node)
    assert list(DataLoader2(changed)) == [0, 2, 4, 6]


def with_fn(node: Any, fn: Any) -> Any:
    copied = with_inputs(node, lambda item: item)
    copied.fn = fn
    return copied
