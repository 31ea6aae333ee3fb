"""P11: images of P3's size, each made in the worker by an operation, 32 in a batch of 4.8 MB.

Samples that lie ready in memory are only copied; most datasets make theirs. Runs in the measured process.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from benchmarks.harness.stream import WrongData, measure_stream
from benchmarks.workloads import p3_images

__all__ = ["PEERS", "TITLE", "UNIT", "check", "make", "run"]

TITLE = "P11 map-style images made in the worker, batches of 4.8 MB"
UNIT = p3_images.UNIT
PEERS = ["dataloader", "torch", "stateful", "spdl_dataloader", "torchpipe", "spdl_arena"]


def make(index: int) -> torch.Tensor:
    return p3_images.make(index) + 1


def check(batch: Any) -> Iterable[int]:
    if not isinstance(batch, torch.Tensor):
        raise WrongData(f"expected a tensor, got {type(batch).__name__}")
    return p3_images.check(batch - 1)  # bytes: 0 becomes 255 again


def run(peer: ModuleType, seconds: float, *, workers: int = 2) -> dict[str, Any]:
    job = replace(p3_images.job(peer), make=make, workers=workers)
    count = job.whole(2 * len(p3_images.ids(1 << 12)))
    return measure_stream(peer, job, seconds, check=check, check_count=count, ids=p3_images.ids)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p11"])
