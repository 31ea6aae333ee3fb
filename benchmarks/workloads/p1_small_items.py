"""P1: small items one by one. Integers through ``map(x + 1)`` in two workers, delivered singly.

Runs in the measured process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["PEERS", "TITLE", "UNIT", "check", "job", "run"]

TITLE = "P1 small items, one by one"
UNIT = "samples_per_s"
PEERS = ["torchpipe", "in_process", "torch", "stateful", "nodes", "spdl", "spdl_chunks", "grain", "mprs09"]


def make(index: int) -> int:
    return index + 1


def check(item: Any) -> Iterable[int]:
    if type(item) is not int:
        raise WrongData(f"expected an int, got {item!r} of type {type(item).__name__}")
    return (item - 1,)


def job() -> Job:
    return Job(count=50_000_000, make=make, item_bytes=28)


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return measure_stream(peer, job(), seconds, check=check, check_count=5_000, ids=lambda count: Counter(range(count)))


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p1"])
