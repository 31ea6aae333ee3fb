"""``dataframe`` and ``load_parquet_as_df``: tables of Arrow, in torcharrow's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.tables.columns import check_columns_of
from torchpipe.formats.tables.parquet import RowGroups
from torchpipe.iter._shared.bases import form_on
from torchpipe.iter._shared.batches import check_same_fields
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count, check_function, check_input

__all__ = ["DataFrameMaker", "ParquetDataFrameLoader"]


def _check_device(form: str, device: str) -> None:
    if device not in ("", "cpu"):
        raise ValueError(f"{form} makes tables in main memory, got device={device!r}: move tensors of theirs instead")


@functional_datapipe("dataframe")
class DataFrameMaker(IterDataPipe[Any]):
    """Gathers ``dataframe_size`` consecutive rows into a ``pyarrow.Table``; the last one may be shorter.

    Rows are dicts; or tuples and lists, whose values ``columns`` names in order; or single values of one column.
    ``dtype`` is a ``pyarrow.Schema``, or ``dtype_generator()`` makes one; without it, types are inferred from the first
    rows of each table.

    State: none of its own. Raises: ImportError without pyarrow; ValueError for a size below 1, rows without names and
    another ``device`` than ``""`` and ``"cpu"``; while iterating, KeyError for a row that
    lacks a column, or has one that the first row of its table has not, and pyarrow's errors for rows that do not fit
    the schema.
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_dp: IterDataPipe[Any],
        dataframe_size: int = 1000,
        dtype: Any = None,
        dtype_generator: Callable[[], Any] | None = None,
        columns: Sequence[str] | None = None,
        device: str = "",
    ) -> IterDataPipe[Any]:
        check_input("dataframe", source_dp)
        needs("pyarrow", "dataframe")
        _check_device("dataframe", device)
        if dtype_generator is not None:
            check_function("dtype_generator", dtype_generator)
        rows = form_on(source_dp, "batch")(
            check_count("dataframe_size", dataframe_size, at_least=1), wrapper_class=list
        )
        return rows.map(_TableOf(dtype, dtype_generator, columns))  # type: ignore[no-any-return]


class _TableOf:
    """Makes a table of a list of rows."""

    def __init__(self, dtype: Any, dtype_generator: Callable[[], Any] | None, columns: Sequence[str] | None) -> None:
        self.dtype = dtype
        self.dtype_generator = dtype_generator
        self.columns = None if columns is None else tuple(columns)

    def __call__(self, rows: list[Any]) -> Any:
        import pyarrow

        schema = self.dtype_generator() if self.dtype is None and self.dtype_generator is not None else self.dtype
        names = self.columns or (None if schema is None else tuple(schema.names))
        if not isinstance(rows[0], dict):
            if names is None:
                raise ValueError(f"dataframe got the row {rows[0]!r:.200}, whose columns have no names: pass columns=")
            rows = [dict(zip(names, _values(row, names), strict=True)) for row in rows]
        elif names is None:
            check_same_fields("dataframe", rows)
        else:
            rows = [_named(number, row, names) for number, row in enumerate(rows)]
        return pyarrow.Table.from_pylist(rows, schema=schema)


def _named(number: int, row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    lacking = [name for name in names if name not in row]
    if lacking:
        raise KeyError(
            f"dataframe: row {number} of this table has no column {lacking[0]!r}, only "
            f"{', '.join(map(repr, row))}: give it the value None if it has none"
        )
    return {name: row[name] for name in names}


def _values(row: Any, names: tuple[str, ...]) -> Sequence[Any]:
    return row if isinstance(row, tuple | list) else (row,)


class _Tables(RowGroups):
    def __init__(self, node: ParquetDataFrameLoader, path: str) -> None:
        super().__init__(path, node.storage_options)
        self._node = node
        check_columns_of(path, self.file.reader.schema_arrow.names, node.columns or ())

    def made(self, group: int) -> Any:
        node = self._node
        table = self.file.reader.read_row_group(group, columns=node.columns, use_threads=node.use_threads)
        return table if node.dtype is None else table.cast(node.dtype)


@functional_datapipe("load_parquet_as_df")
class ParquetDataFrameLoader(FileReader[Any]):
    """Takes paths or URLs of parquet files, and yields a ``pyarrow.Table`` for each row group of them.

    ``columns`` are those to read, by default all. ``dtype`` is a ``pyarrow.Schema`` to cast to. ``read_parquet`` yields
    rows, or batches of a size of your own, and can choose among them.

    State: that of the input before the current file, and the number of its row groups handed out: resuming goes on with
    the next one at once.

    Raises: ImportError without pyarrow; ValueError for another ``device`` than ``""`` and ``"cpu"``; while iterating,
    TypeError for other items, ValueError for a file that is not parquet or lacks a column, and pyarrow's errors, with a
    note of the path.
    """

    fingerprint_ignores = ("storage_options", "use_threads")

    def __init__(
        self,
        source_dp: IterDataPipe[Any],
        dtype: Any = None,
        columns: Sequence[str] | None = None,
        device: str = "",
        use_threads: bool = False,
    ) -> None:
        check_input("load_parquet_as_df", source_dp)
        needs("pyarrow", "load_parquet_as_df")
        super().__init__(source_dp, None)
        _check_device("load_parquet_as_df", device)
        self.dtype = dtype
        self.columns = None if columns is None else list(columns)
        self.use_threads = use_threads

    def records(self, item: Any) -> RowGroups:
        return _Tables(self, self.path_of(item))
