"""P13: what an item costs without workers: P1's integers one by one, and P2's batches of 32.

Runs in the measured process. Its data, and how each item is checked, are P1's and P2's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.stream import measure_stream
from benchmarks.workloads import p1_small_items, p2_dict_batches

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P13 an item in process"
UNIT = "us_per_item"
PEERS = ["torchpipe", "dataloader", "torch", "stateful"]


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, workload in (("us_per_item", p1_small_items), ("us_per_batch", p2_dict_batches)):
        job = replace(workload.job(), workers=0)
        measured = measure_stream(
            peer,
            job,
            seconds / 2,
            check=workload.check,
            check_count=100 * (job.batch_size or 50),
            ids=lambda count: Counter(range(count)),
        )
        figures[name] = 1e6 * (job.batch_size or 1) / measured["samples_per_s"]
        figures["others"] = max(measured["others"], figures.get("others", 0.0))
    return figures


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p13"])
