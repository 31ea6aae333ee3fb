"""P2: small samples, collated into batches of torch tensors in the workers.

Samples {x: float32[16], y: int}, batch 32. Runs in the measured process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["BATCH", "PEERS", "TITLE", "UNIT", "check", "job", "run"]

TITLE = "P2 dicts of torch tensors, batch 32"
UNIT = "samples_per_s"
PEERS = ["torchpipe", "in_process", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]
BATCH = 32
_ROWS = 4096


@functools.cache
def _table() -> torch.Tensor:
    """Row r holds r, r + 1/16, r + 2/16 ...: exact in float32, so that a wrong byte anywhere is seen."""
    return torch.arange(_ROWS)[:, None] + torch.arange(16)[None, :] / 16


def make(index: int) -> dict[str, Any]:
    return {"x": _table()[index % _ROWS], "y": index}


def check(batch: Any) -> Iterable[int]:
    x, y = batch["x"], batch["y"]
    if not isinstance(x, torch.Tensor) or x.shape != (BATCH, 16) or x.dtype != torch.float32 or y.dtype != torch.int64:
        raise WrongData(f"expected a float32 tensor of (32, 16) and an int64 one of (32,), got {x!r} and {y!r}")
    if not torch.equal(x, _table()[y % _ROWS]):
        raise WrongData(f"the rows are not those of the samples {y.tolist()}: {x!r}")
    return y.tolist()


def job() -> Job:
    _table()  # before any fork
    return Job(count=100_000_000, make=make, batch_size=BATCH, item_bytes=BATCH * 72)


def run(peer: ModuleType, seconds: float, *, workers: int = 2) -> dict[str, Any]:
    if getattr(peer, "NUMPY_ONLY", False):
        raise Unsupported("delivers numpy arrays: see P2n")
    wanted = replace(job(), workers=workers)
    return measure_stream(
        peer, wanted, seconds, check=check, check_count=wanted.whole(3200), ids=lambda count: Counter(range(count))
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p2"])
