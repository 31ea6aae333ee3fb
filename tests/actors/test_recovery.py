"""L4 on Ray actors: whatever ends one, or its node, the stream goes on bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from reading_services import Restart
from tests.actors.cluster_rig import actor_processes, endless, first_in_process, kill, ray_loader, texts, wait_until
from torchpipe import DataLoader2
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper


def service_of(loader: DataLoader2[Any]) -> Any:
    return loader.reading_service


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["shuffled", "dispatched"])
def test_L4_each_actor_is_killed_once(kind: str) -> None:
    actors = 3 if kind == "dispatched" else 2
    with ray_loader(endless(kind), 2, 4, on_worker_death=Restart(max_deaths=20)) as loader:
        got, killed = [], list[int]()
        for item in loader:
            got += texts([item])
            alive = service_of(loader).worker_pids()
            if len(alive) == actors and not set(killed) & set(alive):
                if len(killed) == actors:
                    break
                killed.append(alive[len(killed)])
                kill(killed[-1])
        assert service_of(loader).restarts == actors
    assert got == first_in_process(kind, len(got), 4)


@pytest.mark.nightly
def test_L4_an_actor_killed_through_ray_is_replaced() -> None:
    with ray_loader(endless("plain"), 2, 2) as loader:
        stream = iter(loader)
        got = texts([next(stream) for _ in range(3)])
        ray.kill(service_of(loader).actors()[1])
        while not service_of(loader).restarts:
            got += texts([next(stream)])
        got += texts([next(stream) for _ in range(100)])
    assert got == first_in_process("plain", len(got), 2)


@pytest.mark.parametrize("kind", [pytest.param("shuffled", marks=pytest.mark.nightly), "dispatched"])
def test_L4_a_node_goes_away_with_its_actors(kind: str, cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=2, labels={"pool": "away"}, object_store_memory=100 << 20) for _ in range(2)]
    try:
        with ray_loader(
            endless(kind), 2, 4, label_selector={"pool": "away"}, on_worker_death=Restart(max_deaths=1)
        ) as loader:
            stream = iter(loader)
            got = texts([next(stream) for _ in range(5)])
            used = service_of(loader).nodes().values()
            assert set(used) <= {node.node_id for node in nodes}
            lost = nodes.pop(next(number for number, node in enumerate(nodes) if node.node_id in used))
            cluster.remove_node(lost, allow_graceful=False)
            actors = 3 if kind == "dispatched" else 2
            for item in stream:
                got += texts([item])
                used = service_of(loader).nodes().values()
                if len(used) == actors and set(used) == {nodes[0].node_id}:
                    break
            got += texts([next(stream) for _ in range(50)])
        assert got == first_in_process(kind, len(got), 4)
    finally:
        for node in nodes:
            cluster.remove_node(node)


@pytest.mark.nightly
def test_L4_a_node_goes_away_before_its_actors_have_begun(cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=2, labels={"pool": "early"}, object_store_memory=100 << 20) for _ in range(2)]
    try:
        with ray_loader(
            endless("plain"), 2, 2, num_cpus=2, label_selector={"pool": "early"}, on_worker_death=Restart(max_deaths=1)
        ) as loader:
            stream = iter(loader)
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            assert texts([next(stream) for _ in range(20)]) == first_in_process("plain", 20, 2)
    finally:
        for node in nodes:
            cluster.remove_node(node)


@pytest.mark.nightly
def test_L4_before_a_drained_node_goes_others_have_taken_over(cluster: Any) -> None:
    node = cluster.add_node(num_cpus=1, labels={"pool": "drained"}, object_store_memory=100 << 20)
    spare = None
    try:
        endless = IterableWrapper(range(10**9)).sharding_filter()
        with ray_loader(endless, 1, 1, num_cpus=1, label_selector={"pool": "drained"}, worker_prefetch_cnt=1) as loader:
            stream = enumerate(loader)
            assert next(stream) == (0, 0)
            assert set(service_of(loader).nodes().values()) == {node.node_id}
            spare = cluster.add_node(num_cpus=1, labels={"pool": "drained"}, object_store_memory=100 << 20)
            command = [Path(sys.executable).parent / "ray", "drain-node", "--address", cluster.address, "--node-id",
                       node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test",
                       "--deadline-remaining-seconds", "600"]  # fmt: skip
            subprocess.run(list(map(str, command)), check=True, capture_output=True)
            for number, item in stream:
                assert number == item
                if set(service_of(loader).nodes().values()) == {spare.node_id}:
                    break
            assert [next(stream)[1] for _ in range(3)] == [item + 1 + number for number in range(3)]
            assert service_of(loader).restarts == 0  # the node lives: nothing has died
    finally:
        cluster.remove_node(node)
        if spare is not None:
            cluster.remove_node(spare)


def deadly(item: int) -> int:
    if item == 7:
        os._exit(3)
    return item


def test_L4_an_item_that_ends_its_actor_each_time_is_named() -> None:
    with ray_loader(
        IterableWrapper(range(20)).sharding_filter().map(deadly), 1, 1, on_worker_death=Restart(max_deaths=3)
    ) as loader:
        stream = iter(loader)
        assert [next(stream) for _ in range(7)] == list(range(7))
        with pytest.raises(WorkerDiedError, match=r"making item 7 of shard 0.*3 times"):
            next(stream)


@pytest.mark.sample
def test_a_budget_of_restarts_ends_the_run() -> None:
    with ray_loader(endless("plain"), 1, 1, on_worker_death=Restart(max_restarts=0)) as loader:
        stream = iter(loader)
        next(stream)
        kill(service_of(loader).worker_pids()[0])
        with pytest.raises(WorkerDiedError, match="max_restarts=0"):
            list(stream)


@pytest.mark.nightly
def test_an_actor_that_does_not_answer_is_replaced() -> None:
    with ray_loader(endless("plain"), 1, 1, timeout=2.0) as loader:
        stream = iter(loader)
        got = texts([next(stream)])
        kill(service_of(loader).worker_pids()[0], signal.SIGSTOP)
        while not service_of(loader).restarts:
            got += texts([next(stream)])
        got += texts([next(stream) for _ in range(50)])
    assert got == first_in_process("plain", len(got), 1)


DRIVER = """
import sys
import ray
from reading_services import RayReadingService, RayWorkers
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
graph = IterableWrapper(range(10**9)).sharding_filter()
loader = DataLoader2(graph, reading_service=RayReadingService(1, worker_method=RayWorkers(num_cpus=0.5)))
for item in loader:
    print("running", *loader.reading_service.worker_pids(), flush=True)
    sys.stdin.read()
"""


def test_L6_actors_end_with_a_driver_that_is_killed(cluster: Any, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    command = [sys.executable, str(script), cluster.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid = int(driver.stdout.readline().split()[1])
        assert pid in [process.pid for process in actor_processes()]
        driver.kill()
    wait_until(lambda: not actor_processes(), 30.0)


@pytest.mark.nightly
@pytest.mark.parametrize("max_deaths", [2, 3])
def test_L4_an_item_that_ends_the_dispatcher_each_time_is_named(max_deaths: int) -> None:
    graph = IterableWrapper(range(20)).map(deadly).sharding_round_robin_dispatch()
    with ray_loader(graph, 1, 1, on_worker_death=Restart(max_deaths=max_deaths)) as loader:
        got: list[int] = []
        with pytest.raises(
            WorkerDiedError, match=rf"making item 7 of the dispatched stream.* has died [{max_deaths}-9] times"
        ):
            for item in loader:
                got.append(item)
        assert got == list(range(7))
