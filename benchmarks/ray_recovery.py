#!/usr/bin/env python3
"""What Ray workers cost at a start and at a death: the first batch, an actor that is killed, a node that goes away.

    python benchmarks/ray_recovery.py --rounds 3 --out benchmarks/results.json

A cluster of three nodes on this machine (Ray's ``cluster_utils``; there is no network between them). Two workers with
two shards read integers, 5 ms each, one message ahead. The actor, or its node, is killed by SIGKILL. ``noticed``: from
the kill to the engine's warning; ``back``: from the warning to the first item of the shard that it hosted; every item
is checked. ``object_store``: the most that the driver's node holds while batches of 4.8 MB are read.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ray
import torch
from ray.cluster_utils import Cluster

from reading_services import RayReadingService, RayWorkers
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

__all__ = ["main"]

_ITEM_S = 0.005


class Noticed(logging.Handler):
    """When the engine first said that a worker has ended."""

    at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if "starting it anew" in record.getMessage() and not self.at:
            self.at = time.perf_counter()


def slowly(item: int) -> int:
    time.sleep(_ITEM_S)
    return item


def image(item: int) -> torch.Tensor:
    return torch.full((32, 3, 224, 224), item % 256, dtype=torch.uint8)


def loader_of(function: Any, **options: Any) -> DataLoader2[Any]:
    graph = IterableWrapper(range(10**8)).sharding_filter().map(function)
    service = RayReadingService(
        2, worker_method=RayWorkers(label_selector={"pool": "workers"}, rebalance=False), **options
    )
    return DataLoader2(graph, reading_service=service)


def recovery(cluster: Any, nodes: list[Any], *, whole_node: bool) -> dict[str, float]:
    noticed = Noticed()
    logging.getLogger("torchpipe").addHandler(noticed)
    started = time.perf_counter()
    with loader_of(slowly, worker_prefetch_cnt=1) as loader:
        service: Any = loader.reading_service
        figures, killed, number = {}, 0.0, -1
        for number, item in enumerate(loader):
            assert item == number, f"{item} came where {number} belongs"
            now = time.perf_counter()
            if number == 0:
                figures["first_item_s"] = now - started
            if number == 100:
                hosts = service.nodes()
                name = next(iter(hosts))
                killed, noticed.at = time.perf_counter(), 0.0
                if whole_node:
                    node = next(node for node in nodes if node.node_id == hosts[name])
                    nodes.remove(node)
                    cluster.remove_node(node, allow_graceful=False)
                else:
                    os.kill(service.worker_pids()[0], signal.SIGKILL)
            if noticed.at and now > noticed.at:
                figures["noticed_s"], figures["back_s"] = noticed.at - killed, now - noticed.at
                break
        for _, _ in zip(range(200), loader):
            pass
    logging.getLogger("torchpipe").removeHandler(noticed)
    return figures


def object_store_mb() -> float:
    """What is used while large batches wait for the consumer."""
    with loader_of(image) as loader:
        stream, most = iter(loader), 0.0
        for number in range(40):
            assert int(next(stream)[0, 0, 0, 0]) == number % 256
            time.sleep(0.02)
            most = max(most, sum(queue.bytes for queue in loader.stats().queues) / 1e6)
    return most


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Starts and deaths of Ray workers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a JSON file, of which the key ray_recovery is replaced")
    chosen = parser.parse_args(arguments)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 1 << 30})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    nodes: list[Any] = []
    results: dict[str, list[dict[str, float]]] = {"actor": [], "node": []}
    for number in range(chosen.rounds):
        for kind, of_kind in results.items():
            while len(nodes) < 3:
                nodes.append(cluster.add_node(num_cpus=2, labels={"pool": "workers"}, object_store_memory=300 << 20))
            of_kind.append(recovery(cluster, nodes, whole_node=kind == "node"))
            print(f"round {number} {kind}: {of_kind[-1]}", flush=True)
    summary: dict[str, Any] = {
        kind: {name: statistics.median(item[name] for item in of_kind) for name in of_kind[0]}
        for kind, of_kind in results.items()
    }
    summary["object_store_mb"] = object_store_mb()
    print(json.dumps(summary, indent=1))
    if chosen.out is not None:
        document = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
        document["ray_recovery"] = {"rounds": chosen.rounds, "median": summary, "results": results}
        chosen.out.write_text(json.dumps(document, indent=1) + "\n")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
