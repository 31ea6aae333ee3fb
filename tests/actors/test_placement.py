"""Where actors go, what is said where they cannot go anywhere, and how shards move between them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray

from reading_services import PreparingReadingService, RayReadingService, RayWorkers, SequentialReadingService
from tests.actors.cluster_rig import endless, first_in_process, in_process, plain, ray_loader, texts
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper


def test_what_no_node_could_host_is_an_error_that_says_what_is_missing() -> None:
    with (
        ray_loader(plain(), 1, 1, resources={"decoder": 1.0}, start_timeout=2.0) as loader,
        pytest.raises(TimeoutError, match=r"CPU: 0.5, decoder: 1; .* has CPU: 4, decoder: 0.*no node could ever"),
    ):
        list(loader)


@pytest.mark.nightly
def test_a_sequence_says_the_nodes_of_its_actors() -> None:
    sequence: Any = SequentialReadingService(
        PreparingReadingService(), RayReadingService(1, worker_method=RayWorkers(num_cpus=0.5))
    )
    with DataLoader2(plain(4), reading_service=sequence) as loader:
        assert sequence.nodes() == {}
        next(iter(loader))
        assert [*sequence.nodes().values()] == [ray.get_runtime_context().get_node_id()]


def test_memory_is_asked_for_and_named_where_it_is_missing() -> None:
    with ray_loader(plain(), 1, 1, memory=1 << 20) as loader:
        before = ray.available_resources()["memory"]
        stream = iter(loader)
        next(stream)
        assert ray.available_resources()["memory"] <= before  # of actors that are placed, it is taken
    with (
        ray_loader(plain(), 1, 1, memory=1e15, start_timeout=2.0) as loader,
        pytest.raises(TimeoutError, match=r"memory: 1e\+15.*no node could ever"),
    ):
        list(loader)


def test_labels_that_no_node_has_are_named() -> None:
    with (
        ray_loader(plain(), 1, 1, label_selector={"pool": "nowhere"}, start_timeout=2.0) as loader,
        pytest.raises(TimeoutError, match=r"labels \{'pool': 'nowhere'\}.*labels \{'pool': 'head'\}"),
    ):
        list(loader)


@pytest.mark.nightly
def test_where_all_are_needed_one_that_finds_no_room_is_an_error() -> None:
    with (
        ray_loader(plain(10_000), 3, 3, num_cpus=2, rebalance=False, start_timeout=8.0) as loader,
        pytest.raises(TimeoutError, match="all of them are in use"),
    ):
        list(loader)


@pytest.mark.nightly
def test_workers_without_room_leave_their_shards_to_others_and_get_them_when_a_node_joins(cluster: Any) -> None:
    node = None
    with ray_loader(endless("shuffled"), 4, 8, num_cpus=2) as loader:  # there is room for two
        service: Any = loader.reading_service
        got: list[str] = []
        for item in loader:
            got += texts([item])
            if len(got) % 20:
                continue
            hosts = {process.name: process.shards for process in loader.stats().processes if process.kind == "worker"}
            at_work = [shards for shards in hosts.values() if shards]
            if node is None and len(at_work) == 2:
                node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
            elif node is not None and len(at_work) == 4:
                break
        assert node.node_id in service.nodes().values()
        assert sorted(map(len, at_work)) == [2, 2, 2, 2]
    cluster.remove_node(node)
    assert got == first_in_process("shuffled", len(got), 8)


@pytest.mark.nightly
def test_this_node_comes_first(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    try:
        with ray_loader(endless("plain"), 2, 2, num_cpus=1) as loader:
            next(iter(loader))
            here = ray.get_runtime_context().get_node_id()
            assert set(loader.reading_service.nodes().values()) == {here}
    finally:
        cluster.remove_node(node)


@pytest.mark.nightly
def test_two_loaders_that_begin_together_share_the_nodes(cluster: Any) -> None:
    """Both find this node free, and both put their workers there."""
    node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    try:
        loaders = [ray_loader(endless("plain"), 2, 2, num_cpus=2, rebalance=False) for _ in range(2)]
        with loaders[0], loaders[1]:
            services: Any = [loader.reading_service for loader in loaders]
            streams = [iter(loader) for loader in loaders]
            for stream in streams:
                assert texts([next(stream), next(stream)]) == first_in_process("plain", 2, 2)
            nodes = [node_id for service in services for node_id in service.nodes().values()]
            assert sorted(map(nodes.count, {*nodes})) == [2, 2]
            assert all(service.restarts == 0 for service in services)
            for stream in streams:
                assert texts([next(stream) for _ in range(8)]) == first_in_process("plain", 10, 2)[2:]
    finally:
        cluster.remove_node(node)


class SlowOn:
    """Takes three times as long on one node as elsewhere."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id

    def __call__(self, item: int) -> int:
        here = ray.get_runtime_context().get_node_id()
        time.sleep(0.03 if here == self.node_id else 0.01)
        return item


@pytest.mark.nightly
def test_shards_move_from_a_slow_node_to_fast_ones(cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1, labels={"pool": "speed"}, object_store_memory=100 << 20) for _ in range(3)]
    try:
        graph = IterableWrapper(range(10**7)).sharding_filter().map(SlowOn(nodes[0].node_id))
        with ray_loader(graph, 3, 14, num_cpus=1, label_selector={"pool": "speed"}) as loader:
            service: Any = loader.reading_service
            for number, item in enumerate(loader):
                assert item == number
                hosts = {row.name: len(row.shards) for row in loader.stats().processes if row.kind == "worker"}
                of_node = {service.nodes()[name]: count for name, count in hosts.items() if name in service.nodes()}
                if of_node.get(nodes[0].node_id) == 2:
                    break
            assert sum(of_node.values()) == 14
            assert min(count for node_id, count in of_node.items() if node_id != nodes[0].node_id) >= 5
    finally:
        for node in nodes:
            cluster.remove_node(node)


@pytest.mark.sample
def test_the_plan_and_the_figures_tell_of_actors_and_nodes() -> None:
    # Of two that may take each other's shards, the quicker one may have had all of them when the other starts
    with ray_loader(plain(), 2, 2, rebalance=False) as loader:
        assert "2 shards in 2 Ray actors" in loader.explain()
        assert texts(loader) == texts(in_process(plain(), 2))
        stats = loader.stats()
        assert (stats.method, stats.workers) == ("ray", 2)
        names = [process.name for process in stats.processes if process.kind == "worker"]
        assert [name.split(" on ")[0] for name in names] == ["worker 0", "worker 1"]
        assert sum(process.items for process in stats.processes if process.kind == "worker") == 61
