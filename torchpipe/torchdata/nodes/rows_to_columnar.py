"""``rows2columnar``: batches of rows become columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchpipe.iter._shared.bases import Itemwise
from torchpipe.iter._shared.batches import check_same_fields
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["Rows2Columnar"]


@functional_datapipe("rows2columnar")
class Rows2Columnar(Itemwise[dict[Any, list[Any]]]):
    """Makes of each batch of rows a dict from a column's name to the list of its values.

    Rows are dicts, whose ``column_names`` are taken (by default all), or lists and tuples, whose values are named by
    ``column_names`` in order.

    State: none of its own. Raises: while iterating, KeyError for a column that a row does not have or that
    only some have, ValueError for a
    row of another length than ``column_names``.
    """

    def __init__(self, source_datapipe: IterDataPipe[Sequence[Any]], column_names: Sequence[Any] | None = None) -> None:
        super().__init__(source_datapipe)
        self.column_names = () if column_names is None else tuple(column_names)

    def change(self, item: Any) -> dict[Any, list[Any]]:
        columns: dict[Any, list[Any]] = {}
        if not self.column_names and item and isinstance(item[0], dict):
            check_same_fields("rows2columnar", item)
        for row in item:
            for name, value in self._named(row):
                columns.setdefault(name, []).append(value)
        return columns

    def _named(self, row: Any) -> Iterator[tuple[Any, Any]]:
        names = self.column_names
        if isinstance(row, dict):
            missing = [name for name in names if name not in row]
            if missing:
                raise KeyError(f"rows2columnar found no column {missing[0]!r} in the row {row!r:.200}")
            return iter(row.items()) if not names else ((name, row[name]) for name in names)
        if not hasattr(row, "__len__"):
            raise TypeError(
                f"rows2columnar takes rows that are dicts or sequences, got {row!r:.200}: is a batch() missing?"
            )
        if len(row) != len(names):
            raise ValueError(
                f"rows2columnar got a row of {len(row)} values, {row!r:.200}, and {len(names)} column_names: "
                f"{names!r:.100}"
            )
        return zip(names, row)
