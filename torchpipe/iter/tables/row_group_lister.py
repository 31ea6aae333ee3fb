"""``list_row_groups``: what parquet files can be divided and shuffled by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.tables.parquet import RowGroups, import_parquet
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["RowGroupLister"]


@functional_datapipe("list_row_groups")
class RowGroupLister(FileReader[tuple[str, int]]):
    """Yields a pair (path, number) for each row group of parquet files: small things to shuffle and to divide.

    ``read_parquet`` reads these pairs: ``RowGroupLister(paths).shuffle().sharding_filter().read_parquet()`` lets a
    shard read whole row groups, and those of its own alone. Paths as for :class:`~torchpipe.iter.ParquetReader`.

    State: the number of the row group. Only the ends of files are read.

    Raises: ImportError without pyarrow; while iterating, ValueError for a file that is not parquet.
    """

    names_files = True

    def __init__(self, datapipe: Paths, *, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(datapipe, storage_options)
        import_parquet(False)

    def records(self, item: Any) -> RowGroups:
        return RowGroups(self.path_of(item), self.storage_options)
