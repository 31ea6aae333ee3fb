"""P9: memory of all processes in P3, and what grows over epochs.

Runs in the measured process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.measure import Meter, memory_bytes, open_descriptors, segments
from benchmarks.harness.stream import check_pass
from benchmarks.workloads import p3_images

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P9 memory in P3, all processes"
UNIT = "memory_mb"
PEERS = ["torchpipe", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]

BATCHES = 16  # in an epoch


def run(peer: ModuleType, seconds: float, *, epochs: int = 6) -> dict[str, Any]:
    """``memory_mb``: the most in mid-epoch, the consumer holding one batch. Growth: from the second epoch on."""
    job = replace(p3_images.job(peer), count=BATCHES * p3_images.BATCH)
    meter = Meter()
    loader = peer.Loader(job)
    memory, descriptors, shared = [], [], []
    for _ in range(epochs):
        peaks: list[int] = []
        check_pass(_watched(loader, peaks), p3_images.check, p3_images.ids(job.count))
        memory.append(max(peaks))
        descriptors.append(open_descriptors())
        shared.append(segments())
    return {
        "memory_mb": max(memory) / 1e6,
        "memory_growth_mb": (memory[-1] - memory[min(1, epochs - 1)]) / 1e6,
        "descriptor_growth": descriptors[-1] - descriptors[min(1, epochs - 1)],
        "segment_growth": shared[-1] - shared[min(1, epochs - 1)],
        "epochs": epochs,
        "memory_mb_of_epoch": [round(peak / 1e6, 1) for peak in memory],
        "others": meter.read().others,
        "close": loader.close,
    }


def _watched(loader: Iterable[Any], peaks: list[int]) -> Iterator[Any]:
    """The items of a pass; in its middle the memory is taken down."""
    for number, item in enumerate(loader):
        if number in (BATCHES // 3, BATCHES // 2):
            peaks.append(memory_bytes())
        yield item


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p9"])
