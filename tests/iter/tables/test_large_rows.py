"""Row groups and record batches of large rows are read in parts by their bytes, wherever a batch or a state stands."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchpipe.formats.tables.parquet import ParquetBlocks
from torchpipe.iter import ArrowReader, ParquetReader
from torchpipe.testing import check_node

ROWS = 20
ROW_BYTES = 1 << 20  # sixteen of them are a part


@cache
def row(number: int) -> bytes:
    return np.random.default_rng(number).bytes(ROW_BYTES)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "rows.parquet"
    columns = {"a.b": [b"other"] * ROWS, "a": [row(number) for number in range(ROWS)], "n": range(ROWS)}
    pq.write_table(pa.table(columns), path, row_group_size=ROWS)
    return path


def seen(item: Any) -> Any:
    """What stands for a row or a batch, whose bytes are right."""
    if isinstance(item["a"], bytes):
        assert item["a"] == row(item["n"])
        return item["n"]
    numbers = [int(number) for number in item["n"]]
    assert item["a"] == [row(number) for number in numbers]
    return numbers


OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {},
    "batches of 3": {"batch_size": 3},
    "batches larger than a part": {"batch_size": 10, "format": "python"},
    "filtered batches": {"filter": [("n", "!=", 4)], "batch_size": 5},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_row_once_and_resumed_anywhere(options: dict[str, Any], table: Path) -> None:
    check_node(lambda: ParquetReader(str(table), ["n", "a"], **options).map(seen))
    kept = [number for number in range(ROWS) if "filter" not in options or number != 4]
    size = options.get("batch_size")
    expected = kept if size is None else [kept[first : first + size] for first in range(0, len(kept), size)]
    assert list(ParquetReader(str(table), ["n", "a"], **options).map(seen)) == expected


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"batch_size": 3, "format": "arrow"}])
def test_a_row_group_is_never_held_whole(options: dict[str, Any], tmp_path: Path) -> None:
    count, size = 12_000, 4_000  # fewer rows than 65,536, in pages of a few MB
    data = np.random.default_rng(0).bytes(count * size)
    rows = pa.table({"n": range(count), "a": [data[first : first + size] for first in range(0, len(data), size)]})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=count)
    del rows
    before = pa.total_allocated_bytes()
    most = 0
    for _ in ParquetReader(str(tmp_path / "rows.parquet"), **options):
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 44 << 20 < count * size, most


def test_record_batches_are_made_in_parts(tmp_path: Path, table: Path) -> None:
    path = tmp_path / "rows.arrow"
    rows = pq.read_table(table, columns=["a", "n"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    assert list(ArrowReader(str(path), batch_size=7).map(seen)) == [
        list(range(first, min(first + 7, ROWS))) for first in range(0, ROWS, 7)
    ]


def test_a_part_has_as_many_bytes_whether_values_are_stored_as_codes_or_not(tmp_path: Path) -> None:
    tokens = [[number % 4] * 1000 for number in range(64)]
    sizes = []
    for coded in (True, False):
        path = tmp_path / f"{coded}.parquet"
        pq.write_table(pa.table({"t": tokens}), path, use_dictionary=coded)
        blocks = ParquetBlocks(str(path), ["t"], None, False, None, part=False)
        sizes.append(blocks.row_bytes(0))
        blocks.close()
    assert min(sizes) >= 8 * 1000


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_rows_between_nulls_come_and_are_made_a_few_times(form: Any, tmp_path: Path) -> None:
    path = tmp_path / "nulls.parquet"
    bad = {0, 1, 511, 700, 1023}
    numbers = [None if number in bad else number for number in range(1024)]
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path)
    graph = ParquetReader(str(path), format=form).on_error("skip", budget=None)
    assert [int(row["n"]) for row in graph] == [number for number in numbers if number is not None]
