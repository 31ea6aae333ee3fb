"""P2n: as P2, but with numpy arrays and a collate function of the user.

Runs in the measured process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["BATCH", "PEERS", "TITLE", "UNIT", "check", "collate", "job", "run"]

TITLE = "P2n dicts of numpy arrays, batch 32"
UNIT = "samples_per_s"
PEERS = ["torchpipe", "in_process", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]
BATCH = 32
_ROWS = 4096


@functools.cache
def _table() -> np.ndarray:
    return (np.arange(_ROWS)[:, None] + np.arange(16)[None, :] / 16).astype(np.float32)


def make(index: int) -> dict[str, Any]:
    return {"x": _table()[index % _ROWS], "y": index}


def collate(samples: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {
        "x": np.stack([sample["x"] for sample in samples]),
        "y": np.array([sample["y"] for sample in samples], dtype=np.int64),
    }


def check(batch: Any) -> Iterable[int]:
    x, y = batch["x"], batch["y"]
    if not isinstance(x, np.ndarray) or x.shape != (BATCH, 16) or x.dtype != np.float32 or y.dtype != np.int64:
        raise WrongData(f"expected a float32 array of (32, 16) and an int64 one of (32,), got {x!r} and {y!r}")
    if not np.array_equal(x, _table()[y % _ROWS]):
        raise WrongData(f"the rows are not those of the samples {y.tolist()}: {x!r}")
    return y.tolist()


def job() -> Job:
    _table()  # before any fork
    return Job(count=100_000_000, make=make, batch_size=BATCH, collate=collate, item_bytes=BATCH * 72)


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return measure_stream(
        peer, job(), seconds, check=check, check_count=BATCH * 100, ids=lambda count: Counter(range(count))
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p2n"])
