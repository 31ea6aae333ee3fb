"""Parquet files, row group by row group; imports pyarrow when used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.records import Records
from torchpipe.formats.storage.content import open_stored, open_up_to
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import file_system
from torchpipe.formats.storage.streams import stamp_of, stamp_of_path
from torchpipe.formats.tables.blocks import Blocks, in_chunks
from torchpipe.formats.tables.columns import check_columns_of, import_pyarrow
from torchpipe.formats.tables.partitions import Partitions

__all__ = ["NoBlocks", "ParquetBlocks", "RowGroupTables", "RowGroups", "import_parquet", "open_parquet", "rows_in"]


_STREAM_BYTES = 1 << 20  # of each column, that are read at a time


def import_parquet(filtered: bool) -> Any:
    """``pyarrow.parquet``; ``filtered``: and what filters rows, which takes a second (it needs pandas).

    Called when a node is made, so that the workers that are forked off have it. Raises: as :func:`import_pyarrow`.
    """
    import_pyarrow()
    if filtered:
        import_module("pyarrow.dataset")
    return import_module("pyarrow.parquet")


def open_parquet(
    path: str, storage_options: Mapping[str, Any] | None, opened: Any = None
) -> tuple[Any, list[int | str | None] | None]:
    """A ``pyarrow.parquet.ParquetFile``, over the file as ``opened`` if it is, and its stamp.

    A local file is read bit by bit, as it is decoded; at a URL a row group is read at once, in few requests.

    Raises: ValueError, with the path, for another file.
    """
    pa = import_pyarrow()

    source = opened or (open_stored(path, storage_options) if is_remote(path) else path)
    streamed = isinstance(source, str)
    try:
        file = import_parquet(False).ParquetFile(source, buffer_size=_STREAM_BYTES * streamed, pre_buffer=not streamed)
        return file, stamp_of_path(source) if isinstance(source, str) else stamp_of(source)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise ValueError(f"{path} is no parquet file, or a damaged one: {error}") from error


def rows_in(path: str, storage_options: Mapping[str, Any] | None) -> list[int]:
    """How many rows each row group has: read from the end of the file."""
    file, _ = open_parquet(path, storage_options)
    try:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    finally:
        file.close(force=True)


_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # bytes of a value, by physical type


def _plain_size(column: Any) -> int:
    """Bytes of a column chunk's values once they are decoded: codes of a dictionary take less. 0: nobody knows."""
    return int(column.num_values * _WIDTHS.get(column.physical_type, 0))


class ParquetBlocks(Blocks):
    """The row groups of a parquet file: its ``columns``, and the rows that ``keep`` keeps.

    A ``part`` of them is read, which :meth:`narrow` names: at a URL nothing is read ahead of it.

    Raises: ValueError for a column that the file has not, and for a file that is not parquet.
    """

    unit = "row group"

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        keep: Any,
        use_threads: bool,
        storage_options: Mapping[str, Any] | None,
        *,
        part: bool,
        partitions: Partitions | None = None,
    ) -> None:
        self.path = path
        self._partitions = partitions
        self._given = {} if partitions is None else partitions.values(path)
        self._opened: Any = open_up_to(path, None, storage_options) if part and is_remote(path) else None
        self._file, self.stamp = open_parquet(path, storage_options, self._opened)
        self._keep = keep
        self._use_threads = use_threads
        self._storage_options = storage_options
        self._fragment: Any = None
        self._schema: Any = None
        names = self._file.schema_arrow.names
        both = next((name for name in names if name in self._given), None)
        names = [*names, *self._given]
        self.columns = list(columns or names)
        self._read = [name for name in self.columns if name not in self._given]
        self.count = self._file.num_row_groups
        try:
            if both is not None:
                raise ValueError(f"{path} has a column {both!r}, and its path names one: leave partitioning out")
            check_columns_of(path, names, self.columns)
        except ValueError:
            self.close()
            raise

    def narrow(self, first: int, stop: int) -> None:
        if self._opened is None or first == stop:
            return
        group = self._file.metadata.row_group(stop - 1)
        columns = [group.column(number) for number in range(group.num_columns)]
        begins = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        self._opened.raw.stop = max(begin + column.total_compressed_size for begin, column in zip(begins, columns))

    def length(self, block: int) -> int | None:
        if self._keep is not None:
            return None
        length: int = self._file.metadata.row_group(block).num_rows
        return length

    def row_bytes(self, block: int) -> float:
        group = self._file.metadata.row_group(block)
        columns = [group.column(number) for number in range(group.num_columns)]
        read = [column for column in columns if _is_of(column.path_in_schema, self._read)]
        size = sum(max(column.total_uncompressed_size, _plain_size(column)) for column in read)
        return float(size / max(1, group.num_rows))

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        if self._keep is not None:
            return in_chunks(self._filtered(block, rows), rows)
        batches = self._file.iter_batches(
            batch_size=rows, row_groups=[block], columns=self._read, use_threads=self._use_threads
        )
        return in_chunks((self._whole(batch).select(self.columns) for batch in batches), rows)

    def _whole(self, batch: Any) -> Any:
        return batch if self._partitions is None else self._partitions.add_to(batch, self._given)

    def _filtered(self, group: int, rows: int) -> Iterator[Any]:
        if self._fragment is None:
            self._fragment = self._as_fragment()
        fragment = self._fragment.subset(row_group_ids=[group])
        streamed = not is_remote(self.path)
        options = import_module("pyarrow.dataset").ParquetFragmentScanOptions(
            use_buffered_stream=streamed, buffer_size=_STREAM_BYTES, pre_buffer=not streamed
        )
        scanner = fragment.scanner(
            schema=self._schema,
            columns=self.columns,
            filter=self._keep,
            use_threads=self._use_threads,
            batch_size=rows,
            batch_readahead=1,
            fragment_scan_options=options,
        )
        yield from scanner.to_batches()

    def _as_fragment(self) -> Any:
        """The file as a part of a data set, which knows of each row group the least and the greatest values."""
        import pyarrow.dataset
        import pyarrow.fs

        path, system = self.path, pyarrow.fs.LocalFileSystem()
        if is_remote(path):
            remote, path = file_system(path, self._storage_options)
            system = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(remote))
        given = {} if self._partitions is None else {"partition_expression": self._partitions.expression(self.path)}
        self._schema = pyarrow.schema(
            [*self._file.schema_arrow, *(self._partitions.schema if self._partitions else ())]
        )
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(path, filesystem=system, **given)
        fragment.ensure_complete_metadata()
        return fragment

    def close(self) -> None:
        self._file.close(force=True)


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """True if a column of the file, such as ``tokens.list.element``, belongs to one of ``columns``."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


class NoBlocks(Blocks):
    """Of a file that is not opened: a filter keeps none of its rows."""

    stamp = None
    unit = "row group"
    count = 0

    def __init__(self, path: str) -> None:
        self.path = path

    def length(self, block: int) -> int | None:
        return 0

    def row_bytes(self, block: int) -> float:
        return 0.0

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        return


class RowGroups(Records[Any]):
    """(path, number) of each row group of a parquet file. Position: the number."""

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None) -> None:
        self._file, self.stamp = open_parquet(path, storage_options)
        self.path = path
        self._count: int = self._file.num_row_groups
        self._next = 0

    def _made(self, group: int) -> Any:
        return self.path, group

    def __next__(self) -> Any:
        if self._next >= self._count:
            raise StopIteration
        made = self._made(self._next)
        self._next += 1
        return made

    def skip(self, count: int) -> int:
        passed = min(count, self._count - self._next)
        self._next += passed
        return passed

    def position(self) -> dict[str, Any]:
        return {"group": self._next}

    def go_to(self, position: dict[str, Any]) -> None:
        group = position["group"]
        if type(group) is not int or not 0 <= group <= self._count:
            raise StateError(f"{self.path} has {self._count} row groups, and the state names number {group!r:.40}")
        self._next = group

    def where(self) -> str:
        return f"row group {self._next}"

    def close(self) -> None:
        self._file.close(force=True)


class RowGroupTables(RowGroups):
    """The row groups of a parquet file as ``pyarrow.Table``: its ``columns``, cast to ``schema`` if there is one.

    Raises: ValueError for a column that the file does not have, and for a file that is not parquet.
    """

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        schema: Any,
        use_threads: bool,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(path, storage_options)
        self._columns, self._schema, self._use_threads = columns, schema, use_threads
        check_columns_of(path, self._file.schema_arrow.names, columns or ())

    def _made(self, group: int) -> Any:
        table = self._file.read_row_group(group, columns=self._columns, use_threads=self._use_threads)
        return table if self._schema is None else table.cast(self._schema)
