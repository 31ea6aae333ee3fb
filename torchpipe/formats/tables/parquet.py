"""Parquet files, row group by row group; imports pyarrow when used.

Columns that stand in the paths of files, as Hive writes them: ``year=2024/month=01/part-0.parquet``.

Names, types and values are those that ``pyarrow.dataset`` makes of such paths. Imports pyarrow when used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from torchpipe.errors import StateError
from torchpipe.formats.records import Records
from torchpipe.formats.storage.content import open_stored, open_up_to
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.streams import Remembered, Stamp, identity_of, stamp_of
from torchpipe.formats.tables.blocks import Blocks, filtered, in_chunks, is_of_content
from torchpipe.formats.tables.columns import check_columns_of, check_filter, import_pyarrow, names_in

__all__ = [
    "NoBlocks",
    "ParquetBlocks",
    "ParquetFile",
    "Partitions",
    "RowGroups",
    "check_fields",
    "groups_in",
    "hive_fields",
    "import_parquet",
    "is_at_hand",
]

_NULL = "__HIVE_DEFAULT_PARTITION__"


def _texts(path: str) -> dict[str, str | None]:
    """The columns in the folders of ``path``, as text."""
    found: dict[str, str | None] = {}
    for key, equals, value in (folder.partition("=") for folder in path.split("/")[:-1]):
        if key and equals:
            text = unquote(value)
            found.setdefault(unquote(key), None if text == _NULL else text)
    return found


def hive_fields(paths: Sequence[str]) -> Any:
    """The columns in ``paths`` as a ``pyarrow.Schema``: int32 if all values of one are such numbers, else text.

    Raises: ValueError if there are none.
    """
    pa = import_pyarrow()
    values: dict[str, set[str]] = {}
    for path in paths:
        for key, value in _texts(path).items():
            values.setdefault(key, set()).update(() if value is None else (value,))
    if not values:
        raise ValueError(
            f"partitioning='hive' is of paths such as year=2024/part-0.parquet, and {paths[0]!r:.200} has no key=value"
        )
    return pa.schema([(key, _type_of(sorted(found))) for key, found in values.items()])


def check_fields(value: Any) -> Any:
    """``value``, if it is a ``pyarrow.Schema`` with a column at least. Raises: TypeError, ValueError."""
    if not isinstance(value, import_pyarrow().Schema):
        raise TypeError(f"partitioning must be 'hive' or a pyarrow.Schema of the columns in paths, got {value!r:.80}")
    if not value.names or len(set(value.names)) < len(value.names):
        raise ValueError(f"partitioning must name columns, each once, got {value.names!r:.80}")
    return value


def _type_of(values: list[str]) -> Any:
    pa = import_pyarrow()
    try:
        pa.array(values, pa.string()).cast(pa.int32())
    except pa.ArrowInvalid:
        return pa.string()
    return pa.int32() if values else pa.string()


class Partitions:
    """The values of ``schema``'s columns that paths tell; sees whether a ``filter`` leaves anything of a file.

    A list's conditions on these columns are looked at; an expression is if it is of these columns alone.

    Raises: ValueError for a condition with a value of another type than its column.
    """

    def __init__(self, schema: Any, filter: Any) -> None:
        self.schema = schema
        self._keep = self._of_files(filter)

    def values(self, path: str) -> dict[str, Any]:
        """A ``pyarrow.Scalar`` for each column, null where the path does not have it. Raises: ValueError, naming it."""
        pa = import_pyarrow()
        texts = _texts(path)
        try:
            return {field.name: pa.scalar(texts.get(field.name), pa.string()).cast(field.type) for field in self.schema}
        except pa.ArrowException as error:
            raise ValueError(
                f"{path} has a value that is not of {dict(zip(self.schema.names, self.schema.types))}: {error}"
            ) from error

    def drops(self, path: str) -> bool:
        """True if the filter keeps no row of this file, whatever it holds."""
        if self._keep is None:
            return False
        return not self._row(self.values(path)).filter(self._keep).num_rows

    def _row(self, values: dict[str, Any]) -> Any:
        pa = import_pyarrow()
        return pa.table([pa.array([value.as_py()], value.type) for value in values.values()], self.schema)

    def _of_files(self, value: Any) -> Any:
        pa = import_pyarrow()
        if value is None:
            return None
        if isinstance(value, list):
            ways = [value] if isinstance(value[0][0], str) else value  # a list of ways, one of which is to hold
            known = [[condition for condition in way if condition[0] in self.schema.names] for way in ways]
            for way in filter(None, known):
                self._check_types(way)
            return check_filter(known) if all(known) else None
        try:
            self.schema.empty_table().filter(value)
        except pa.ArrowException:  # it is of other columns, too
            return None
        return value

    def _check_types(self, conditions: list[Any]) -> None:
        """Raises: ValueError unless their values can be compared with these columns."""
        try:
            self.schema.empty_table().filter(check_filter(conditions))
        except import_pyarrow().ArrowException as error:
            types = ", ".join(f"{field.name} {field.type}" for field in self.schema)
            raise ValueError(
                f"filter compares {conditions!r:.200} with columns of paths, which are {types}: {error}"
            ) from error

    def expression(self, path: str) -> Any:
        """An expression that is true of all rows of the file, as a ``pyarrow.compute.Expression``."""
        import pyarrow.compute as pc

        made = pc.scalar(True)
        for name, value in self.values(path).items():
            made &= pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        return made

    def add_to(self, batch: Any, values: dict[str, Any]) -> Any:
        """``batch`` with these columns behind its own."""
        pa = import_pyarrow()
        arrays = [pa.repeat(value, batch.num_rows) for value in values.values()]
        schema = pa.schema([*batch.schema, *self.schema])
        return pa.RecordBatch.from_arrays([*batch.columns, *arrays], schema=schema)


_STREAM_BYTES = 1 << 20  # of each column, that are read at a time
_FOOTERS_BYTES = 1 << 26  # of those that a process keeps
_DECODED = 20  # so many bytes are one of a footer as it is stored, with what a filter knows of it


def import_parquet(filtered: bool) -> Any:
    """``pyarrow.parquet``; ``filtered``: and what filters rows, which takes a second (it needs pandas).

    Called when a node is made, so that the workers that are forked off have it. Raises: as :func:`import_pyarrow`.
    """
    import_pyarrow()
    if filtered:
        import_module("pyarrow.dataset")
    return import_module("pyarrow.parquet")


class _Footer:
    """The table at the end of a file: what stands where."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self._looked: tuple[tuple[str, str], tuple[Any, list[str]]] | None = None  # of the last filter

    def look(self, keep: Any, schema: Any, given: Any) -> tuple[Any, list[str]]:
        """The file as a part of a data set, which knows of each row group the least and the greatest values, and the
        columns that ``keep`` looks at. ``given`` is true of all rows; both are expressions of columns of ``schema``.
        """
        key = str(keep), str(given)
        looked = self._looked
        if looked is None or looked[0] != key:
            pa, form = import_pyarrow(), import_module("pyarrow.dataset").ParquetFileFormat()
            sink = pa.BufferOutputStream()
            self.metadata.write_metadata_file(sink)
            fragment = form.make_fragment(pa.BufferReader(sink.getvalue()), partition_expression=given)
            fragment.ensure_complete_metadata()
            self._looked = looked = key, (fragment, names_in(keep, schema))
        return looked[1]


_footers = Remembered[_Footer](_FOOTERS_BYTES)


def is_at_hand(path: str) -> bool:
    """True if the footer of a file of that name is known in this process."""
    return _footers.has(path)


class ParquetFile:
    """An open parquet file: ``reader`` is pyarrow's ``ParquetFile`` of it, ``opened`` what that reads.

    All is read of the one file that was opened: a local one bit by bit, as it is decoded; at a URL a row group at once,
    in few requests. Of ``part`` of that, ``opened.raw.stop`` may say from where on little is read. Raises: ValueError,
    with the path, for what is no parquet file; the OSError of one that cannot be opened or read.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None, *, part: bool = False) -> None:
        pa = import_pyarrow()

        streamed = not is_remote(path)
        if streamed:
            self.opened: Any = open(path, "rb", buffering=0)
        else:
            self.opened = open_up_to(path, None, storage_options) if part else open_stored(path, storage_options)
        self.stamp = stamp_of(self.opened)
        identity = identity_of(self.opened, self.stamp)
        footer = _footers.get(path, identity)
        try:
            self.reader = import_parquet(False).ParquetFile(
                self.opened,
                metadata=None if footer is None else footer.metadata,
                buffer_size=_STREAM_BYTES * streamed,
                pre_buffer=not streamed,
            )
        except (pa.ArrowInvalid, OSError) as error:
            self.opened.close()
            if not is_of_content(error):
                raise
            raise ValueError(f"{path} is no parquet file, or a damaged one: {error}") from error
        self.footer = footer or _Footer(self.reader.metadata)
        if footer is None:
            _footers.keep(path, identity, self.footer, _DECODED * self.footer.metadata.serialized_size)

    def close(self) -> None:
        self.reader.close(force=True)


def groups_in(path: str, storage_options: Mapping[str, Any] | None) -> tuple[Stamp | None, list[Any]]:
    """The stamp of the file, and its footer's entry for each row group, as pyarrow has it."""
    file = ParquetFile(path, storage_options)
    file.close()
    metadata = file.footer.metadata
    return file.stamp, [metadata.row_group(number) for number in range(metadata.num_row_groups)]


_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # bytes of a value, by physical type


def _plain_size(column: Any) -> int:
    """Bytes of a column chunk's values once they are decoded: codes of a dictionary take less. 0: nobody knows."""
    return int(column.num_values * _WIDTHS.get(column.physical_type, 0))


class ParquetBlocks(Blocks):
    """The row groups of a parquet file: its ``columns``, and the rows that ``keep`` keeps.

    A ``part`` of them is read, which :meth:`narrow` names: at a URL nothing is read ahead of it.

    Raises: ValueError for a column that the file has not, and for a file that is not parquet.
    """

    block_name = "row group"

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
        self._file = ParquetFile(path, storage_options, part=part)
        self.stamp = self._file.stamp
        self._keep = keep
        self._metadata = self._file.footer.metadata
        self._use_threads = use_threads
        self.count = self._metadata.num_row_groups
        try:
            schema = self._file.reader.schema_arrow
            both = next((name for name in schema.names if name in self._given), None)
            if both is not None:
                raise ValueError(f"{path} has a column {both!r}, and its path names one: leave partitioning out")
            whole = import_pyarrow().schema([*schema, *(partitions.schema if partitions else ())])
            self.columns = list(columns or whole.names)
            check_columns_of(path, whole.names, self.columns)
            given = None if partitions is None else partitions.expression(path)
            self._fragment: Any = None
            names: Sequence[str] = ()
            if keep is not None:
                self._fragment, names = self._file.footer.look(keep, whole, given)
            self._whole = whole
            needed = {*self.columns, *names}
            self._read = [name for name in schema.names if name in needed]
        except ValueError:
            self.close()
            raise

    def narrow(self, first: int, stop: int) -> None:
        if first == stop or not is_remote(self.path):
            return
        group = self._metadata.row_group(stop - 1)
        columns = [group.column(number) for number in range(group.num_columns)]
        begins = [column.dictionary_page_offset or column.data_page_offset for column in columns]
        self._file.opened.raw.stop = max(begin + column.total_compressed_size for begin, column in zip(begins, columns))

    def length(self, block: int) -> int | None:
        if self._keep is not None:
            return None
        length: int = self._metadata.row_group(block).num_rows
        return length

    def row_bytes(self, block: int) -> float:
        group = self._metadata.row_group(block)
        columns = [group.column(number) for number in range(group.num_columns)]
        read = [column for column in columns if _is_of(column.path_in_schema, self._read)]
        size = sum(max(column.total_uncompressed_size, _plain_size(column)) for column in read)
        return float(size / max(1, group.num_rows))

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        if self._keep is not None:
            group = self._fragment.subset(row_group_ids=[block])
            if not group.subset(self._keep, self._whole).num_row_groups:  # its statistics show that no row is kept
                return iter(())
        read = self._file.reader.iter_batches(
            batch_size=rows, row_groups=[block], columns=self._read, use_threads=self._use_threads
        )
        batches = (batch if self._partitions is None else self._partitions.add_to(batch, self._given) for batch in read)
        return in_chunks(filtered(batches, self.columns, self._keep), rows)

    def close(self) -> None:
        self._file.close()


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """True if a column of the file, such as ``tokens.list.element``, belongs to one of ``columns``."""
    return any(path == name or path.startswith(f"{name}.") for name in columns)


class NoBlocks(Blocks):
    """The blocks of a file that is not opened: a filter keeps none of its rows."""

    stamp = None
    block_name = "row group"
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
    """The row groups of a parquet file, each as ``make(number)`` makes it. Position: the number."""

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None) -> None:
        self.file = ParquetFile(path, storage_options)
        self.path, self.stamp = path, self.file.stamp
        self._count: int = self.file.footer.metadata.num_row_groups
        self._next = 0

    @abstractmethod
    def made(self, group: int) -> Any:
        """The item that stands for a row group."""

    def __next__(self) -> Any:
        if self._next >= self._count:
            raise StopIteration
        made = self.made(self._next)
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
        self.file.close()
