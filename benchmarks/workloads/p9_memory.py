"""P9: memory of all processes in P3, and what grows over epochs.

Runs in the measured process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.measure import Meter, open_descriptors, pss_bytes, segments
from benchmarks.harness.stream import check_pass
from benchmarks.workloads import p3_images

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P9 memory in P3 (PSS of all processes)"
UNIT = "pss_mb"
PEERS = ["torchpipe", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]

BATCHES = 16  # in an epoch


def run(peer: ModuleType, seconds: float, *, epochs: int = 6) -> dict[str, Any]:
    """``pss_mb``: the most in mid-epoch, the consumer holding one batch. Growth: from the second epoch to the last."""
    job = replace(p3_images.job(peer), count=BATCHES * p3_images.BATCH)
    meter = Meter()
    loader = peer.Loader(job)
    pss, descriptors, shared = [], [], []
    for _ in range(epochs):
        peaks: list[int] = []
        check_pass(_watched(loader, peaks), p3_images.check, p3_images.ids(job.count))
        pss.append(max(peaks))
        descriptors.append(open_descriptors())
        shared.append(segments())
    return {
        "pss_mb": max(pss) / 1e6,
        "pss_growth_mb": (pss[-1] - pss[min(1, epochs - 1)]) / 1e6,
        "descriptor_growth": descriptors[-1] - descriptors[min(1, epochs - 1)],
        "segment_growth": shared[-1] - shared[min(1, epochs - 1)],
        "epochs": epochs,
        "pss_mb_of_epoch": [round(peak / 1e6, 1) for peak in pss],
        "others": meter.read().others,
        "close": loader.close,
    }


def _watched(loader: Iterable[Any], peaks: list[int]) -> Iterator[Any]:
    """The items of a pass; in its middle the memory is taken down."""
    for number, item in enumerate(loader):
        if number in (BATCHES // 3, BATCHES // 2):
            peaks.append(pss_bytes())
        yield item


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p9"])
