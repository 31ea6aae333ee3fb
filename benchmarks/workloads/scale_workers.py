"""Scaling over workers: samples that take 1 ms of waiting each, in batches of 16, with 1 to 4 workers.

Runs in the measured process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "workers on a source that waits 1 ms for each sample"
UNIT = "samples_per_s"
PEERS = ["torchpipe", "torch", "nodes", "spdl"]
BATCH = 16


def make(index: int) -> int:
    time.sleep(0.001)
    return index


def collate(samples: list[int]) -> Any:
    return np.array(samples, dtype=np.int64)


def check(batch: Any) -> Iterable[int]:
    if not isinstance(batch, np.ndarray) or batch.shape != (BATCH,):
        raise WrongData(f"expected {BATCH} integers, got {batch!r}")
    return batch.tolist()


def run(peer: ModuleType, seconds: float, *, workers: int = 2) -> dict[str, Any]:
    job = Job(count=BATCH * 12 * 10_000, make=make, batch_size=BATCH, collate=collate, workers=workers)
    return measure_stream(
        peer, job, seconds, check=check, check_count=BATCH * 12, ids=lambda count: Counter(range(count))
    )
