"""The planner: which nodes run where, and which graphs are refused."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from torchpipe import IterDataPipe
from torchpipe.errors import GraphError
from torchpipe.graph import plan
from torchpipe.graph.plan import Plan
from torchpipe.iter import IterableWrapper
from torchpipe.map import SequenceWrapper
from torchpipe.node.traits import node_name


def source(length: int = 4) -> Any:
    return IterableWrapper(range(length))


def names(nodes: tuple[Any, ...]) -> list[str]:
    return [type(node).__name__ for node in nodes]


def check_complete(split: Plan) -> None:
    """Every node is in exactly one section."""
    sections = [*split.dispatch_nodes, *split.shard_nodes, *split.main_nodes]
    assert len({id(node) for node in sections}) == len(sections)
    assert sections[-1] is split.root
    assert not split.main_nodes or not set(split.cuts) & set(split.main_nodes)


class InMain(IterDataPipe[Any]):
    """A node of a user that cannot be replicated, said in torchdata's way."""

    main_input: Any

    def __init__(self, *inputs: Any) -> None:
        self.inputs = inputs

    def is_replicable(self) -> bool:
        return False


def test_without_a_node_for_the_main_process_all_is_shard_section() -> None:
    graph = source().shuffle().sharding_filter().map(abs).batch(2)
    split = plan(graph)
    check_complete(split)
    assert split.cuts == (split.root,) == (graph,)
    assert names(split.shard_nodes) == ["IterableWrapper", "Shuffler", "ShardingFilter", "Mapper", "Batcher"]
    assert (split.main_nodes, split.dispatch, split.dispatch_nodes) == ((), None, ())
    assert names(split.sharding_points) == ["ShardingFilter"]


def test_to_device_and_what_follows_run_in_the_main_process() -> None:
    batched = source().sharding_filter().batch(2)
    split = plan(batched.to_device("cpu").map(len).prefetch(2))
    check_complete(split)
    assert split.cuts == (batched,)
    assert names(split.main_nodes) == ["ToDevice", "Mapper", "Prefetcher"]


def test_a_node_that_is_not_replicable_runs_in_the_main_process() -> None:
    shards = source().sharding_filter()
    split = plan(InMain(shards).map(abs))
    check_complete(split)
    assert split.cuts == (shards,)
    assert names(split.main_nodes) == ["InMain", "Mapper"]


def test_what_the_shards_deliver_cannot_be_read_twice() -> None:
    shards = source().sharding_filter()
    moved = shards.to_device("cpu")
    for graph, times in (
        (moved.zip(moved), 2),
        (moved.map(abs).zip(moved.map(str)), 2),
        (InMain(InMain(shards), shards), 2),
        (moved.concat(moved.zip(moved)), 3),
    ):
        with pytest.raises(GraphError, match=rf"after ShardingFilter read it {times} times. Branch before that"):
            plan(graph)
    plan(shards.zip(shards).to_device("cpu").cycle(2))


def test_what_is_dispatched_cannot_be_read_twice() -> None:
    dispatched = source().sharding_round_robin_dispatch()
    for graph in (dispatched.zip(dispatched), dispatched.map(abs).concat(dispatched.map(str)).batch(2)):
        with pytest.raises(
            GraphError, match=r"what is dispatched comes once .* after ShardingRound\w+ read it 2 times"
        ):
            plan(graph)
    trunk = source()
    plan(trunk.zip(trunk).sharding_round_robin_dispatch().map(len))


def test_a_node_that_keeps_its_input_under_two_names_reads_it_once() -> None:
    node = InMain(source().sharding_filter())
    node.main_input = node.inputs[0]
    assert plan(node).cuts == (node.main_input,)


def test_branches_are_one_section() -> None:
    trunk = source().map(abs)
    split = plan(trunk.map(str).zip(trunk.map(len)).sharding_filter())
    check_complete(split)
    assert names(split.shard_nodes).count("Mapper") == 3


def test_branches_that_meet_in_the_main_process_have_a_cut_each() -> None:
    left, right = source().sharding_filter().map(abs), source().sharding_filter().batch(2)
    split = plan(InMain(left, right).map(len))
    check_complete(split)
    assert split.cuts == (left, right)
    assert names(split.main_nodes) == ["InMain", "Mapper"]
    split.check_num_shards(3)
    assert split.replicated_sources(3) == []


def test_a_branch_that_is_not_divided_stays_in_the_main_process() -> None:
    shards, table = source().sharding_filter(), source().map(str)
    split = plan(InMain(shards, table))
    check_complete(split)
    assert split.cuts == (shards,)
    assert names(split.main_nodes) == ["IterableWrapper", "Mapper", "InMain"]
    split.check_num_shards(3)
    assert split.replicated_sources(3) == []  # it is read once
    assert split.replicated_sources(1, world_size=2) == ["IterableWrapper"]  # by each rank


def test_branches_without_any_sharding_point_are_for_one_shard() -> None:
    left, right = source().map(abs), source().map(str)
    split = plan(InMain(left, right))
    assert split.cuts == (left, right)
    split.check_num_shards(1)
    with pytest.raises(GraphError, match=r"the branch that ends in Mapper\(abs\) has no sharding point, so each of 2"):
        split.check_num_shards(2)


def test_a_map_style_input_is_not_cut_off_from_what_indexes_it() -> None:
    table = SequenceWrapper([1, 2])
    shards = source().sharding_filter()
    split = plan(InMain(shards, table))
    assert split.cuts == (shards,)
    assert names(split.main_nodes) == ["SequenceWrapper", "InMain"]


def test_dispatching_in_two_branches_that_meet_in_the_main_process_is_refused() -> None:
    trunk = source().sharding_round_robin_dispatch()
    for graph in (
        InMain(source().sharding_round_robin_dispatch(), source().sharding_round_robin_dispatch().map(abs)),
        InMain(trunk.map(abs), trunk.map(str)),
    ):
        with pytest.raises(GraphError, match=r"2 branches that meet only in the main process \(.*\) each have a"):
            plan(graph)
    split = plan(InMain(source().sharding_filter(), trunk.map(abs)))
    check_complete(split)
    assert (split.dispatch, split.dispatch_branch) == (trunk, 1)
    assert names(split.shard_nodes) == ["IterableWrapper", "ShardingFilter", "Mapper"]


def test_sources_that_every_shard_reads_whole_are_found() -> None:
    split = plan(source().sharding_filter().zip(source().map(abs)).concat(source().sharding_filter()))
    split.check_num_shards(2)
    assert split.replicated_sources(1) == []
    assert split.replicated_sources(2) == ["IterableWrapper"]
    divided = plan(source().zip(source()).sharding_filter())
    assert divided.replicated_sources(2, world_size=2) == []


def test_a_graph_with_nothing_for_the_shards_is_refused() -> None:
    with pytest.raises(GraphError, match=r"nothing is left for the shards to do: Mapper\(abs\) and all before it"):
        plan(InMain().map(abs))


def test_a_cycle_is_refused_with_its_name() -> None:
    first = source().map(abs)
    last = first.map(str).batch(2)
    first.source = last
    for node in (first, last):
        with pytest.raises(GraphError, match=r"the graph has a cycle: \w+.* is, through others, its own input"):
            plan(node)
    first.source = first
    with pytest.raises(GraphError, match=r"cycle: Mapper\(abs\)"):
        plan(first)


def test_a_graph_may_be_as_deep_as_python_can_call() -> None:
    graph = source().sharding_filter()
    for _ in range(3000):
        graph = graph.map(abs)
    with pytest.raises(GraphError, match="nodes stand one behind the other"):
        plan(graph)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(25_000)
    try:
        assert len(plan(graph).shard_nodes) == 3002
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    "graph",
    [
        source().sharding_filter().sharding_filter(),
        source().sharding_filter().map(abs).shuffle().batch(2).sharding_filter(),
        source().sharding_filter().zip(source()).sharding_filter(),
        source().zip(source().sharding_filter()).sharding_round_robin_dispatch(),
        source().sharding_round_robin_dispatch().sharding_filter(),
    ],
)
def test_two_sharding_points_on_one_path_are_refused(graph: Any) -> None:
    with pytest.raises(GraphError, match="two sharding points on one path: Sharding.* Keep the one .* nearer to the"):
        plan(graph)


def test_sharding_points_on_separate_paths_are_fine() -> None:
    split = plan(source().sharding_filter().zip(source().map(abs).sharding_filter()))
    check_complete(split)
    assert names(split.sharding_points) == ["ShardingFilter", "ShardingFilter"]


def test_a_shared_sharding_point_is_one() -> None:
    shared = source().sharding_filter()
    assert len(plan(shared.map(abs).zip(shared.map(str))).sharding_points) == 1


def test_several_shards_need_a_sharding_point() -> None:
    without = plan(source().map(abs).concat(source().map(str)))
    without.check_num_shards(1)
    with pytest.raises(
        GraphError, match=r"each of 2 shards would yield every item of IterableWrapper, IterableWrapper"
    ):
        without.check_num_shards(2)
    plan(source().sharding_filter()).check_num_shards(1000)
    plan(source().sharding_round_robin_dispatch()).check_num_shards(1000)


def test_what_is_dispatched_is_a_section_of_its_own() -> None:
    dispatcher = source().shuffle().sharding_round_robin_dispatch()
    split = plan(dispatcher.map(abs).batch(2).to_device("cpu"))
    check_complete(split)
    assert split.dispatch is dispatcher
    assert names(split.dispatch_nodes) == ["IterableWrapper", "Shuffler", "ShardingRoundRobinDispatcher"]
    assert names(split.shard_nodes) == ["Mapper", "Batcher"]


def test_of_several_dispatchers_the_first_node_behind_all_is_dispatched() -> None:
    joined = source().sharding_round_robin_dispatch().zip(source().sharding_round_robin_dispatch().map(abs))
    split = plan(joined.map(len))
    check_complete(split)
    assert split.dispatch is not None
    assert node_name(split.dispatch) == "Zipper"
    assert names(split.shard_nodes) == ["Mapper"]
