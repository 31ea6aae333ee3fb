"""``dataframe`` and ``load_parquet_as_df``: tables of Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchpipe.iter import IterableWrapper
from torchpipe.testing import CountingSource, check_node

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string())])


def lists(tables: Any) -> list[Any]:
    return [table.to_pydict() for table in tables]


def test_tables_of_rows() -> None:
    rows = [(number, str(number)) for number in range(5)]
    expected = [{"a": [0, 1, 2], "b": ["0", "1", "2"]}, {"a": [3, 4], "b": ["3", "4"]}]
    source = IterableWrapper(rows)
    assert lists(source.dataframe(3, columns=["a", "b"])) == expected
    tables = list(source.dataframe(3, dtype=SCHEMA))
    assert (lists(tables), tables[0].schema) == (expected, SCHEMA)
    assert list(source.dataframe(3, dtype_generator=lambda: SCHEMA)) == tables
    dicts = IterableWrapper([{"a": number, "b": str(number), "c": 0} for number in range(5)])
    assert lists(dicts.dataframe(3, columns=["a", "b"])) == expected
    assert lists(IterableWrapper(range(2)).dataframe(columns=["x"])) == [{"x": [0, 1]}]
    check_node(lambda: CountingSource(rows).dataframe(2, dtype=SCHEMA).map(pa.Table.to_pydict), pulls=lambda k: 2 * k)


def test_tables_of_files(tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table({"a": [number * 10 + row for row in range(5)], "b": ["x"] * 5})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=2)
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    found = lists(IterableWrapper(paths).load_parquet_as_df(columns=["a"]))
    assert found == [{"a": rows} for rows in ([0, 1], [2, 3], [4], [10, 11], [12, 13], [14])]
    cast = IterableWrapper(paths).load_parquet_as_df(SCHEMA, use_threads=True)
    assert [table.schema for table in cast] == [SCHEMA] * 6
    check_node(lambda: CountingSource(paths).load_parquet_as_df().map(pa.Table.to_pydict), pulls=lambda k: 2)
    fsspec.filesystem("memory").pipe("/x.parquet", Path(paths[0]).read_bytes())
    assert lists(IterableWrapper(["memory://x.parquet"]).load_parquet_as_df(columns=["a"])) == found[:3]
    with pytest.raises(ValueError, match=r"0\.parquet has no column 'c': its columns are a, b"):
        list(IterableWrapper(paths).load_parquet_as_df(columns=["c"]))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match=f"{tmp_path}/text is no parquet file"):
        list(IterableWrapper([tmp_path / "text"]).load_parquet_as_df())


def test_wrong_items_and_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = IterableWrapper([(1, 2)])
    cases: list[Any] = [
        (lambda: list(source.dataframe()), ValueError, "have no names"),
        (lambda: list(source.dataframe(columns=["a"])), ValueError, "argument"),
        (lambda: list(source.load_parquet_as_df()), TypeError, "needs paths"),
    ]
    for call, error, message in cases:
        with pytest.raises(error, match=message):
            call()
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for form in ("dataframe", "load_parquet_as_df"):
        with pytest.raises(ImportError, match="pip install pyarrow$"):
            getattr(source, form)()
