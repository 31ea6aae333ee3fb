"""The table of P18: parquet files whose values follow from their row's number, written once into ``.bench/table``.

Runs in the measured process.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.environments import ROOT
from benchmarks.harness.job import Unsupported
from benchmarks.harness.stream import WrongData

__all__ = ["BATCH", "COLUMNS", "ROWS", "ROWS_IN_A_FILE", "check", "files", "ids"]

BATCH = 1024
ROWS_IN_A_FILE = 4 * 50 * BATCH  # four row groups of 50 batches, so that nobody's batches are cut
FILES = 4
ROWS = FILES * ROWS_IN_A_FILE
_FEATURES = 12
COLUMNS = ["id", *(f"f{number}" for number in range(_FEATURES)), "label"]  # what is read; there is a text besides
_FOLDER = ROOT / ".bench" / "table"


def _feature(number: int, ids: Any) -> Any:
    return ((ids * (2 * number + 3) % 10_007) / 8).astype(np.float32)


def files(count: int) -> list[str]:
    """Files with ``count`` rows in all, one after the other and again. Raises: Unsupported without pyarrow."""
    paths = [_FOLDER / f"{number}.parquet" for number in range(FILES)]
    if not all(path.exists() for path in paths):
        _write(paths)
    return [str(paths[number % FILES]) for number in range(count // ROWS_IN_A_FILE)]


def _write(paths: list[Path]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as missing:
        raise Unsupported(f"the table is written by pyarrow: {missing}") from None
    _FOLDER.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths):
        rows = np.arange(number * ROWS_IN_A_FILE, (number + 1) * ROWS_IN_A_FILE)
        columns = {"id": rows, **{f"f{feature}": _feature(feature, rows) for feature in range(_FEATURES)}}
        columns |= {"label": (rows % 7).astype(np.int8), "text": np.char.mod("row %d", rows)}
        pq.write_table(pa.table(columns), f"{path}.part", row_group_size=50 * BATCH)
        os.replace(f"{path}.part", path)


def check(batch: Any) -> Iterable[int]:
    """The rows of a batch, a dict of columns. Raises: WrongData unless every value is its row's."""
    columns = {name: np.asarray(batch[name]) for name in COLUMNS}
    rows = columns["id"]
    if len(rows) != BATCH or rows.dtype != np.int64:
        raise WrongData(f"expected {BATCH} rows with an id of int64, got {len(rows)} with one of {rows.dtype}")
    same = np.array_equal(columns["label"], rows % 7)
    for feature in range(_FEATURES):
        found = columns[f"f{feature}"]
        same = same and found.dtype == np.float32 and np.array_equal(found, _feature(feature, rows))
    if not same:
        raise WrongData(f"the columns of rows {rows[0]} to {rows[-1]} hold other values than were written")
    return rows.tolist()  # type: ignore[no-any-return]


@functools.cache
def ids(count: int) -> Any:
    """What a pass over ``count`` rows must hold, as a Counter."""
    return Counter(row % ROWS for row in range(count))
