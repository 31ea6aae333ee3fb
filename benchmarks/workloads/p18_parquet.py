"""P18: a parquet table, 14 of its 15 columns, as batches of 1,024 rows: dicts of torch tensors, in order.

Each reader as its library has it, in the consumer's process but for the one that says otherwise. Runs in the measured
process.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.stream import measure_stream
from benchmarks.workloads import _table

__all__ = ["PEERS", "TITLE", "UNIT", "job", "run"]

TITLE = "P18 parquet rows to batches of 1,024"
UNIT = "samples_per_s"
PEERS = ["tables", "tables_workers", "pyarrow", "pyarrow_batches", "datasets"]


def job(count: int = 2_000 * _table.ROWS_IN_A_FILE) -> Job:
    def make(_: int) -> Any:
        raise AssertionError("the rows are read, not made")

    columns = _table.COLUMNS
    return Job(count=count, make=make, batch_size=_table.BATCH, tables=_table.files, columns=tuple(columns))


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    return measure_stream(peer, job(), seconds, check=_table.check, check_count=_table.ROWS_IN_A_FILE, ids=_table.ids)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p18"])
