"""Parquet shards: a row is a dict, and every row has the columns of the first one; imports pyarrow when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.formats.tables.columns import import_pyarrow
from torchpipe.formats.tables.parquet import import_parquet
from torchpipe.writing.files import PartFile
from torchpipe.writing.kinds import Kind, Writing

__all__ = ["Tables"]

_GROUP_BYTES = 1 << 24  # of values in a row group, which a resume reads again


def _encode_row(row: Any) -> tuple[int, dict[str, Any]]:
    """(bytes of its values, the row, tensors as arrays). Raises: TypeError for what is no dict with texts as keys."""
    if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
        raise TypeError(
            f"a row for a parquet shard must be a dict of values by their columns' names, got {row!r:.80} of type "
            f"{type(row).__name__}"
        )
    if not row:
        raise ValueError("a row for a parquet shard must have columns, got {}")
    made = {
        name: value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value for name, value in row.items()
    }
    return sum(map(_bytes_of, made.values())), made


def _bytes_of(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value)) if value and not isinstance(value[0], int | float) else 8 * len(value)
    return 8


class Tables(Kind):
    """``schema``: pyarrow's; by default that which pyarrow finds in the first row group. Raises: TypeError."""

    def __init__(self, schema: Any) -> None:
        pa = import_pyarrow()
        if schema is not None and not isinstance(schema, pa.Schema):
            raise TypeError(f"schema must be a pyarrow.Schema, got {schema!r:.80} of type {type(schema).__name__}")
        self.encode = _encode_row
        self.arguments = {"schema": None if schema is None else _as_text(schema)}
        self._schema = schema

    def open(self, files: list[PartFile]) -> Writing:
        if self._schema is None and self.learned:
            self._schema = import_pyarrow().ipc.read_schema(import_pyarrow().py_buffer(bytes.fromhex(self.learned)))
        return _TableWriting(self, files[0])

    def table(self, rows: list[dict[str, Any]]) -> Any:
        """``rows`` as a table. Raises: ValueError, with the column."""
        pa = import_pyarrow()
        names = list(rows[0]) if self._schema is None else self._schema.names
        for row in rows:
            if row.keys() != set(names):
                raise ValueError(
                    f"a row has the columns {', '.join(row)}, and the first one, or schema=, has {', '.join(names)}: "
                    "all rows of a run have the same, with None where there is no value"
                )
        kinds = [None if self._schema is None else self._schema.field(name).type for name in names]
        columns = [_column(name, [row[name] for row in rows], kind) for name, kind in zip(names, kinds)]
        if self._schema is None:
            empty = next((name for name, column in zip(names, columns) if _is_empty(column.type)), None)
            if empty is not None:
                raise ValueError(
                    f"column {empty!r} is empty in the first {len(rows)} rows, so that its type cannot be found: give "
                    "schema=pyarrow.schema([...])"
                )
            self._schema = pa.schema([(name, column.type) for name, column in zip(names, columns)])
            self.learned = _as_text(self._schema)
        return pa.Table.from_arrays(columns, schema=self._schema)


def _as_text(schema: Any) -> str:
    return str(schema.serialize().to_pybytes().hex())


def _column(name: str, values: list[Any], kind: Any) -> Any:
    """``values`` as an array, of type ``kind`` if there is one. Raises: ValueError for values that it does not hold."""
    pa = import_pyarrow()
    try:
        found = _found(values)
        if found is not None and kind in (None, found.type):
            return found
        made = pa.array(values, kind)
        if found is not None:
            _check_kept(found, kind)
        return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"column {name!r} cannot be written as {kind or 'one type'}: {error}. Parquet holds numbers, texts, bytes, "
            "times, lists and dicts of them, of one type in a column: schema= says which, and images are encoded to "
            "bytes in the graph"
        ) from error


def _found(values: list[Any]) -> Any:
    """``values`` as an array of the type that they seem to have; None if it takes a schema to say."""
    pa = import_pyarrow()
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _check_kept(found: Any, kind: Any) -> None:
    """Raises: ValueError for what pyarrow would cut off without a word: digits behind the point, fields of dicts."""
    pa = import_pyarrow()
    if pa.types.is_struct(found.type) and pa.types.is_struct(kind):
        for index in range(found.type.num_fields):
            field = found.type.field(index).name
            if kind.get_field_index(field) < 0:
                raise ValueError(f"a dict has the field {field!r}")
            _check_kept(found.field(index), kind.field(field).type)
    elif pa.types.is_list(found.type) and hasattr(kind, "value_type"):
        _check_kept(found.flatten(), kind.value_type)
    elif pa.types.is_floating(found.type) and pa.types.is_integer(kind):
        found.cast(kind)


def _is_empty(kind: Any) -> bool:
    """True for a type of nothing, and one of lists or dicts of it."""
    pa = import_pyarrow()
    return bool(pa.types.is_null(kind)) or any(_is_empty(kind.field(index).type) for index in range(kind.num_fields))


class _TableWriting(Writing):
    def __init__(self, kind: Tables, file: PartFile) -> None:
        self._kind = kind
        self._file = file
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._writer: Any = None

    def add(self, encoded: Any) -> int:
        size, row = encoded
        self._rows.append(row)
        self._bytes += size
        if self._bytes >= _GROUP_BYTES:
            self._write()
        return int(size)

    def _write(self) -> None:
        table = self._kind.table(self._rows)
        self._rows, self._bytes = [], 0
        if self._writer is None:
            self._writer = import_parquet(False).ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()
