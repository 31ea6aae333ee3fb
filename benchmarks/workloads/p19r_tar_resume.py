"""P19r: going on behind 90 % of P19s's shards: from making a reader to its first batch, the next three compared.

Who has no state reads up to there again, as its user would have to. Runs in the measured process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.harness.resume import measure_resume
from benchmarks.workloads import _samples, p19s_tar_samples

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P19r resume behind 90 % of 16,000 samples in tar shards"
UNIT = "resume_ms"
PEERS = p19s_tar_samples.PEERS


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    position = _samples.SAMPLES // _samples.BATCH * 9 // 10
    return measure_resume(peer, p19s_tar_samples.job(_samples.SAMPLES), position, _samples.check)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p19r"])
