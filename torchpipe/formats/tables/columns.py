"""Columns of Arrow as Python objects, numpy arrays or tensors; imports pyarrow when used.

Numbers and booleans become arrays of their own type, fixed-size lists of them arrays of more dimensions, lists of
varying length lists of arrays, dates and times ``datetime64`` (numpy alone), everything else (text, bytes,
structures) lists of Python objects. What is made owns its memory and may be changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from torchpipe.compat.packages import needs
from torchpipe.formats.numbers import given_number, holds

__all__ = [
    "FORMATS",
    "RowMaker",
    "batch_maker",
    "check_columns_of",
    "check_fill_null",
    "check_filter",
    "check_format",
    "checked_columns",
    "import_pyarrow",
    "names_in",
    "without_views",
]  # fmt: skip

FORMATS = ("python", "numpy", "torch", "arrow")
_DTYPES = {name: np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64")}
_DTYPES |= {name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")}
_DTYPES |= {"halffloat": np.dtype("float16"), "float": np.dtype("float32"), "double": np.dtype("float64")}


def import_pyarrow() -> Any:
    """Raises: ImportError that names the package."""
    return needs("pyarrow", "reading parquet and Arrow files")


def without_views(schema: Any) -> Any:
    """The schema with its views of texts and bytes, as Polars writes them, as ``large_string`` and ``large_binary``,
    also within lists, structures, maps and dictionaries: pyarrow has no functions that take rows of a view, or compare
    them. The same schema if it has none."""
    return import_pyarrow().schema([_without_view(field) for field in schema], schema.metadata)


def _without_view(field: Any) -> Any:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: Any) -> Any:
    pa = import_pyarrow()
    types = pa.types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _plain_type(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([_without_view(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_without_view(kind.key_field), _without_view(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_without_view(kind.value_field), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(_without_view(kind.value_field))
    return kind


def checked_columns(columns: object) -> tuple[str, ...] | None:
    """``columns`` as a tuple. Raises: ValueError unless they are names, each once."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise ValueError(f"columns must be a list of names, at least one, got {columns!r:.80}")
    names = tuple(columns)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns must be names, each once, got {columns!r:.80}")
    return names


def check_columns_of(path: str, names: Sequence[str], columns: Iterable[str]) -> None:
    """Raises: ValueError if one of ``columns`` is none of the ``names`` that the file has."""
    missing = [name for name in columns if name not in names]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}: its columns are {', '.join(names)}")


def check_filter(value: Any) -> Any:
    """``value`` as an expression of pyarrow, or None. Raises: ValueError, TypeError for another value."""
    if value is None:
        return None
    pa = import_pyarrow()

    compute, parquet = import_module("pyarrow.compute"), import_module("pyarrow.parquet")
    if isinstance(value, compute.Expression):
        return value
    if isinstance(value, list):
        try:
            return parquet.filters_to_expression(value)
        except (TypeError, ValueError, IndexError, pa.ArrowException) as error:
            raise ValueError(f'filter must be a list such as [("age", ">", 3)], got {value!r:.80} ({error})') from error
    raise TypeError(
        f"filter must be an expression of pyarrow.compute or a list such as [('age', '>', 3)], got {value!r:.80} of "
        f"type {type(value).__name__}: for a function, put .filter() behind the reader"
    )


def names_in(keep: Any, schema: Any) -> list[str]:
    """The columns of ``schema`` that ``keep`` looks at; all, if it cannot be told: of one that names no column, say."""
    dataset, pa = import_module("pyarrow.dataset"), import_pyarrow()

    def does_without(names: Sequence[str]) -> bool:
        rest = pa.schema([field for field in schema if field.name not in names])
        try:
            dataset.Scanner.from_batches([], schema=rest, columns=[], filter=keep)
        except pa.ArrowException:
            return False
        return True

    def found(names: Sequence[str]) -> list[str]:
        if does_without(names):
            return []
        if len(names) == 1:
            return list(names)
        return [*found(names[: len(names) // 2]), *found(names[len(names) // 2 :])]

    by_place = "FieldPath(" in str(keep)
    return list(schema.names) if by_place or not does_without(()) else found(schema.names)


def check_format(value: object, batch_size: int | None) -> str:
    """``value``, by default "torch" for batches and "python" for rows. Raises: ValueError."""
    if value is None:
        return "python" if batch_size is None else "torch"
    if value not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}, got {value!r}")
    if batch_size is None and value == "arrow":
        raise ValueError("format='arrow' is of batches: give batch_size, or another format for rows as dicts")
    return str(value)


def check_fill_null(value: Any, form: str) -> Any:
    """``value``, a number or a dict of them by column, as Python's own. Raises: TypeError for other things; ValueError
    for a ``form`` that has nulls of its own."""
    if value is not None and form in ("python", "arrow"):
        raise ValueError(
            f"fill_null is of arrays, and format={form!r} hands out nulls as they are: leave it out, or give "
            "format='numpy' or 'torch'"
        )
    if isinstance(value, Mapping):
        return {name: given_number(f"fill_null of column {name!r}", number) for name, number in value.items()}
    return None if value is None else given_number("fill_null", value)


class RowMaker:
    """Makes the rows of record batches as dicts. ``form`` "python": Python objects, nulls as None. "numpy", "torch": as
    in batches, of a row: numbers are numpy's or tensors of no dimension, lists of numbers arrays or tensors.

    Raises, when called: as :func:`batch_maker`.
    """

    def __init__(self, form: str, fill_null: Any) -> None:
        self._form = form
        self._fill_null = fill_null

    def __call__(self, batch: Any) -> list[dict[str, Any]]:
        names = batch.schema.names
        return [dict(zip(names, row)) for row in zip(*map(self._values, names, batch.columns))]

    def _values(self, name: str, column: Any) -> Sequence[Any]:
        if self._form == "python":
            return list(column.to_pylist())
        made = _column(name, column, _fill(self._fill_null, name), self._form == "torch")
        if isinstance(made, _Tensors):
            return [torch.from_numpy(np.array(part)) for part in made.array]
        if isinstance(made, np.ndarray) and made.ndim > 1:
            return [part.copy() for part in made]
        return list(made)


def batch_maker(form: str, fill_null: Any) -> Callable[[Any], Callable[[int, int], Any]]:
    """A function of a record batch that gives the function from (first row, row after the last) to a batch.

    Raises, when called, ValueError for a null in a column that becomes an array, unless ``fill_null`` says what is to
    stand there: a value, or a dict of one for each column.
    """
    if form == "arrow":
        return lambda batch: lambda first, last: batch.slice(first, last - first)
    if form == "python":
        return lambda batch: _sliced({name: batch.column(name).to_pylist() for name in batch.schema.names})

    def make(batch: Any) -> Callable[[int, int], dict[str, Any]]:
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns):
            columns[name] = _column(name, column, _fill(fill_null, name), form == "torch")
        return _sliced(columns)

    return make


def _fill(fill_null: Any, name: str) -> Any:
    return fill_null.get(name) if isinstance(fill_null, Mapping) else fill_null


def _sliced(columns: dict[str, Any]) -> Callable[[int, int], dict[str, Any]]:
    # Copies: a view would keep the memory of many batches alive as long as one of them is held.
    cuts = [
        (name, (lambda a, b, v=values: v[a:b]) if isinstance(values, list) else _cut(values))
        for name, values in columns.items()
    ]
    return lambda first, last: {name: cut(first, last) for name, cut in cuts}


def _cut(values: Any) -> Callable[[int, int], Any]:
    if isinstance(values, _Tensors):
        array = values.array
        return lambda first, last: torch.from_numpy(array[first:last].copy())
    return lambda first, last: values[first:last].copy()


class _Tensors:
    """An array that is to be handed out as tensors."""

    def __init__(self, array: Any) -> None:
        self.array = array


def _column(name: str, column: Any, fill: Any, tensors: bool) -> Any:
    pa = import_pyarrow()
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    shape = order = None
    if isinstance(kind, pa.FixedShapeTensorType):
        order = kind.permutation
        column, shape, kind = column.storage, kind.shape, kind.storage_type
    if not tensors and (unit := _time_unit(kind)) is not None:
        return _times(column, *unit)
    if _is_number(kind) or _is_fixed(kind):
        array = _array(name, column, fill)
        if shape is not None:
            array = array.reshape(len(array), *shape)
            if order is not None:  # the axes as they are meant, of those that lie in memory
                array = array.transpose(0, *[axis + 1 for axis in order])
        return _Tensors(array) if tensors else array
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type):
        return _ragged(name, column, fill, tensors)
    return column.to_pylist()


def _is_number(kind: Any) -> bool:
    types = import_pyarrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_fixed(kind: Any) -> bool:
    """True for a fixed-size list of numbers, or of lists of that kind."""
    while import_pyarrow().types.is_fixed_size_list(kind):
        kind = kind.value_type
        if _is_number(kind):
            return True
    return False


def _refuse_nulls(name: str, column: Any, fill: Any) -> Any:
    if not column.null_count:
        return column
    if fill is not None:
        dtype = _DTYPES[str(column.type)]
        if not holds(dtype, fill):
            raise ValueError(f"column {name!r} of type {column.type} cannot hold fill_null={fill!r}")
        return column.fill_null(import_pyarrow().scalar(dtype.type(fill), column.type))
    advice = (
        f"Name a value for them, fill_null={{{name!r}: ...}}, or filter these rows out"
        if _is_number(column.type)
        else "fill_null is for numbers and not for lists: filter these rows out, or write empty lists"
    )
    row = next(index for index, valid in enumerate(column.is_valid()) if not valid.as_py())
    raise ValueError(
        f"column {name!r} has {column.null_count} nulls, the first {row} rows on, which an array of {column.type} "
        f"cannot hold. {advice}"
    )


def _array(name: str, column: Any, fill: Any) -> Any:
    if _is_number(column.type):
        return _values(_refuse_nulls(name, column, fill))
    _refuse_nulls(name, column, None)
    values = column.flatten()
    inner = _array(name, values, fill)
    return inner.reshape(len(column), column.type.list_size, *inner.shape[1:])


def _values(column: Any) -> Any:
    """Numbers as they lie in memory, not to be written to. Arrow's own ``to_numpy`` would import pandas: a second."""
    data = column.buffers()[1]
    if not len(column):
        return np.empty(0, _DTYPES[str(column.type)])
    if str(column.type) == "bool":
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[column.offset : column.offset + len(column)].view(np.bool_)
    dtype = _DTYPES[str(column.type)]
    return np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)


def _time_unit(kind: Any) -> tuple[str, str] | None:
    """(numpy's type, the integers that it is made of) of a point in time or a duration."""
    types = import_pyarrow().types
    if types.is_timestamp(kind) or types.is_duration(kind):
        return f"{'datetime64' if types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]", "int64"
    if types.is_date(kind):
        return ("datetime64[D]", "int32") if types.is_date32(kind) else ("datetime64[ms]", "int64")
    return None


def _times(column: Any, dtype: str, integers: str) -> Any:
    values = _values(column.view(integers)).astype(np.int64).view(dtype)
    if column.null_count:
        values[~_values(column.is_valid())] = "NaT"
    return values


def _ragged(name: str, column: Any, fill: Any, tensors: bool) -> list[Any]:
    _refuse_nulls(name, column, None)
    values = _array(name, column.flatten(), fill)
    ends = np.append(0, np.cumsum(_values(column.value_lengths())))
    parts = [values[first:last].copy() for first, last in itertools.pairwise(ends)]
    return [torch.from_numpy(part) for part in parts] if tensors else parts
