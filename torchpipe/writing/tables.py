"""Parquet shards: a row is a dict, and every row has the columns of the first one; imports pyarrow when used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.formats.tables.columns import import_pyarrow
from torchpipe.formats.tables.parquet import import_parquet
from torchpipe.writing.kinds import Kind, PartFile, Writing

__all__ = ["Tables"]

_GROUP_BYTES = 1 << 24  # of values in a row group, which a resume reads again

_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})  # that nobody changes


def _encode_row(row: Any) -> tuple[int, dict[str, Any]]:
    """(bytes of its values, a copy of the row). Raises: TypeError for what is no dict with texts as keys."""
    if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
        raise TypeError(
            f"a row for a parquet shard must be a dict of values by their columns' names, got {row!r:.80} of type "
            f"{type(row).__name__}"
        )
    if not row:
        raise ValueError("a row for a parquet shard must have columns, got {}")
    made = {name: _own(value) for name, value in row.items()}
    return sum(map(_bytes_of, made.values())), made


def _own(value: Any) -> Any:
    """A copy that nobody else changes: rows wait for their group. Raises: TypeError for masked arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("parquet has no masks of numpy's: give lists, with None where there is no value")
    if isinstance(value, np.ndarray):
        return _own(value.tolist()) if value.dtype.hasobject else value.copy()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return {name: _own(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return list(value) if _PLAIN.issuperset(map(type, value)) else [_own(each) for each in value]
    return value


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
        narrows = self.arguments["schema"] is not None
        columns = [_column(name, [row[name] for row in rows], kind, narrows) for name, kind in zip(names, kinds)]
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


def _column(name: str, values: list[Any], kind: Any, narrows: bool) -> Any:
    """``values`` as an array, of type ``kind`` if there is one. Raises: ValueError for values that it does not hold."""
    pa = import_pyarrow()
    try:
        made = pa.array(values, kind)
        if not _are_arrays_of(values, made, narrows):
            for given, back in zip(values, made.to_pylist()):
                if not _is_equal(given, back, narrows):
                    raise ValueError(f"{given!r:.80} would come back as {back!r:.80}")
        return made
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"column {name!r} cannot be written as {kind or 'one type'}: {error}. Parquet holds numbers, texts, bytes, "
            "times, lists and dicts of them, of one type in a column: schema= says which, and images are encoded to "
            "bytes in the graph"
        ) from error


def _are_arrays_of(values: list[Any], made: Any, narrows: bool) -> bool:
    """True if ``values`` are arrays of one axis and type, and ``made``, of lists, has what is in them."""
    pa = import_pyarrow()
    kinds = {value.dtype if isinstance(value, np.ndarray) and value.ndim == 1 else None for value in values}
    lists = pa.types.is_list(made.type) or pa.types.is_large_list(made.type)
    if len(kinds) != 1 or not lists or (kind := kinds.pop()) is None or kind.kind not in "iuf":
        return False
    flat = made.flatten()
    if flat.null_count or not pa.types.is_primitive(flat.type):
        return False
    given, back = np.concatenate(values), flat.to_numpy(zero_copy_only=False)
    if back.dtype.kind != kind.kind or made.value_lengths().to_pylist() != list(map(len, values)):
        return False
    return bool(np.array_equal(given, back, equal_nan=kind.kind == "f")) or (narrows and _is_narrowed(given, back))


def _is_narrowed(given: Any, back: Any) -> bool:
    """True if floats are those that were given, as near as the smaller type of a schema has them."""
    given, back = np.asarray(given), np.asarray(back)
    if given.dtype.kind != "f" or back.dtype.kind != "f":
        return False
    with np.errstate(over="ignore"):
        near = any(np.array_equal(given.astype(kind), back, equal_nan=True) for kind in ("float32", "float16"))
    return near and np.array_equal(np.isfinite(given), np.isfinite(back))


def _is_equal(given: Any, back: Any, narrows: bool) -> bool:
    """True if what is read back has the values and types of what was given, arrays and numpy's numbers as Python's.

    With ``narrows``, a schema says how floats are kept.
    """
    if isinstance(given, np.ndarray | np.generic):
        given = given.tolist()
    if isinstance(given, dict):
        back = dict(back) if isinstance(back, list) else back  # of a map
        return (
            isinstance(back, dict)
            and given.keys() == back.keys()
            and all(_is_equal(each, back[name], narrows) for name, each in given.items())
        )
    if isinstance(given, list | tuple):
        if not isinstance(back, list | tuple) or len(given) != len(back):
            return False
        kinds = set(map(type, given))
        alike = kinds <= _PLAIN and kinds == set(map(type, back))  # of each other: a column has one type
        if alike and (list(given) == back or (narrows and kinds == {float} and _is_narrowed(given, back))):
            return True
        return all(_is_equal(each, its, narrows) for each, its in zip(given, back))
    if not isinstance(given, type(back)) or isinstance(given, bool) != isinstance(back, bool):
        return False
    if given == back or (given != given and back != back):
        return True
    return narrows and isinstance(given, float) and _is_narrowed(given, back)


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
