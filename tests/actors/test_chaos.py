"""L4 under 200 deaths: actors by signals and through Ray, and whole nodes, at random moments."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import ray

from reading_services import Restart
from tests.actors.cluster_rig import GRAPHS, first_in_process, kill, ray_loader, takes_long, texts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3000)]

DEATHS = int(os.environ.get("TORCHPIPE_RAY_DEATHS", "100"))  # of each kind of graph


@pytest.mark.parametrize("kind", ["shuffled", "dispatched"])
def test_L4_random_deaths_of_actors_and_nodes(kind: str, cluster: Any) -> None:
    chance = random.Random(7)
    nodes = [_node(cluster) for _ in range(2)]
    struck = removed = 0
    graph = GRAPHS[kind](10_000_000).map(takes_long)
    try:
        # Kills without an end at one and the same item are no accident to the engine: allow for all of them
        options: dict[str, Any] = {
            "label_selector": {"pool": "chaos"},
            "on_worker_death": Restart(max_deaths=DEATHS),
            "start_timeout": 600,
        }
        with ray_loader(graph, 3, 6, **options) as loader:
            service: Any = loader.reading_service
            got: list[str] = []
            for item in loader:
                got += texts([item])
                if struck >= DEATHS:
                    break
                if chance.random() > 0.1 or not service.worker_pids():
                    continue
                struck += 1
                if chance.random() < 0.1:
                    node = nodes.pop(chance.randrange(len(nodes)))
                    cluster.remove_node(node, allow_graceful=False)
                    nodes.append(_node(cluster))
                    removed += 1
                elif chance.random() < 0.5:
                    kill_quietly(chance.choice(service.worker_pids()))
                else:
                    ray.kill(chance.choice(service.actors()))
            print(f"{struck} deaths, {removed} of them of nodes, {service.restarts} restarts, {len(got)} items")
        assert got == first_in_process(kind, len(got), 6)
    finally:
        for node in nodes:
            cluster.remove_node(node)


def _node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=4, labels={"pool": "chaos"}, object_store_memory=100 << 20)


def kill_quietly(pid: int) -> None:
    try:
        kill(pid)
    except ProcessLookupError:
        pass
