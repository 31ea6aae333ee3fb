"""Columns that stand in the paths of files, as Hive writes them: ``year=2024/month=01/part-0.parquet``.

Names, types and values are those that ``pyarrow.dataset`` makes of such paths. Imports pyarrow when used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from torchpipe.formats.tables.columns import check_filter, import_pyarrow

__all__ = ["Partitions", "check_fields", "hive_fields"]

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
