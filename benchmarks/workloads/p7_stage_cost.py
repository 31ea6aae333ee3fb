"""P7: what a stage costs in process. Ten identity maps over small integers, less the same without them.

Runs in the measured process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["PEERS", "TITLE", "UNIT", "check", "run"]

TITLE = "P7 cost of a stage, in process"
UNIT = "ns_per_stage"
PEERS = ["torchpipe", "torch", "nodes", "grain", "mprs09", "generator", "builtin_map"]

COUNT = 50_000


def check(items: Iterable[int], count: int) -> None:
    """Raises: WrongData unless ``items`` are 0 .. count - 1 in order."""
    expected = 0
    for item in items:
        if item != expected:
            raise WrongData(f"expected {expected}, got {item!r}")
        expected += 1
    if expected != count:
        raise WrongData(f"the stream ended after {expected} of {count} items")


def _pass_s(peer: ModuleType, number: int) -> float:
    items = peer.stages(COUNT, number)
    started = time.perf_counter()
    for _ in items:
        pass
    return time.perf_counter() - started


def run(peer: ModuleType, seconds: float, *, stages: int = 10) -> dict[str, Any]:
    if not hasattr(peer, "stages"):
        raise Unsupported("has no stages that run in process")
    check(peer.stages(1_000, stages), 1_000)
    meter, started = Meter(), time.perf_counter()
    with_stages, without = [], []
    while not with_stages or time.perf_counter() - started < seconds:
        with_stages.append(_pass_s(peer, stages))
        without.append(_pass_s(peer, 0))
    whole_s, base_s = min(with_stages), min(without)  # the least disturbed pass of each
    return {
        "ns_per_stage": (whole_s - base_s) / COUNT / stages * 1e9,
        "ns_per_item": whole_s / COUNT * 1e9,
        "items_per_s": COUNT / whole_s,
        "others": meter.read().others,
    }


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p7"])
