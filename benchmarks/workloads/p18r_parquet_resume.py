"""P18r: going on behind 90 % of P18's table: from making a reader to its first batch.

The next three are compared. Who has no state reads up to there again, as its user would have to. Runs in the measured
process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.harness.resume import measure_resume
from benchmarks.workloads import _table, p18_parquet

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P18r resume behind 90 % of 819,200 parquet rows"
UNIT = "resume_ms"
PEERS = p18_parquet.PEERS


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    batches = _table.ROWS // _table.BATCH
    return measure_resume(
        peer, p18_parquet.job(_table.ROWS), batches * 9 // 10, lambda batch: list(_table.check(batch))
    )


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p18r"])
