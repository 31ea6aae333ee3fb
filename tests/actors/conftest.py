"""One Ray cluster for all tests in here. No actor may be left behind by a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.actors.cluster_rig import actor_processes, wait_until


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/actors/" in item.path.as_posix():
            item.add_marker("ray")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Ray's own cluster of several nodes on one machine; this process is its driver."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 4, "object_store_memory": 300 << 20, "labels": {"pool": "head"}},
    )
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def nothing_left_behind(cluster: Any) -> Iterator[None]:
    """In the place of the fixture of all tests: Ray's own processes, threads and files stay."""
    yield
    wait_until(lambda: not actor_processes(), 20.0)
