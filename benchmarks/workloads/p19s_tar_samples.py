"""P19s: samples of 8 kB and a class out of tar shards, as bytes, 64 in a batch, without workers: what reading costs.

Runs in the measured process.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.stream import measure_stream
from benchmarks.workloads import _samples

__all__ = ["PEERS", "TITLE", "UNIT", "job", "run"]

TITLE = "P19s samples of 8 kB out of tar shards, in process"
UNIT = "samples_per_s"
PEERS = ["shards_in_process", "webdataset_in_process"]


def job(count: int = 400 * _samples.SAMPLES) -> Job:
    def make(_: int) -> Any:
        raise AssertionError("the samples are read, not made")

    tars, collate = _samples.tars(), _samples.collate
    return Job(count=count, make=make, batch_size=_samples.BATCH, collate=collate, workers=0, tars=tars)


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return measure_stream(
        peer,
        job(),
        seconds,
        check=_samples.check,
        check_count=_samples.SAMPLES,
        ids=lambda count: Counter(index % _samples.SAMPLES for index in range(count)),
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p19s"])
