"""``list_row_groups``: what parquet files can be divided and shuffled by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torchpipe.formats.pieces.plan import PiecePlan, plan_pieces
from torchpipe.formats.storage.listed import size_of
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.tables.parquet import RowGroups, import_parquet
from torchpipe.iter._shared.paths import ListedKeys, PathList, Paths
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.context import Context
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["RowGroupLister"]


@functional_datapipe("list_row_groups")
class RowGroupLister(FileReader[tuple[str, int]]):
    """Yields a pair (path, number) for each row group of parquet files: small things to shuffle and to divide.

    ``read_parquet`` reads these pairs: ``RowGroupLister(paths).shuffle().sharding_filter().read_parquet()`` lets a
    shard read whole row groups, and those of its own alone, as ``ParquetReader(paths).shard_pieces()`` does. Paths as
    for :class:`~torchpipe.iter.ParquetReader`.

    Only the ends of files are read: those of paths that are given once, several at a time, when the node is made; those
    of paths that a node yields as they come, by each shard.

    State: one integer, and which files there were, as of :class:`~torchpipe.iter.PathList`; behind a node the number of
    the row group.

    Raises: ImportError without pyarrow; ValueError for a file that is not parquet, when the node is made or, behind a
    node, while iterating.
    """

    divided_by = ""
    begins_at = -(1 << 16)  # where the table of what is in it stands
    names_files = True
    fingerprint_ignores = ("storage_options", "paths", "listed", "groups")

    def __init__(self, datapipe: Paths, *, storage_options: Mapping[str, Any] | None = None) -> None:
        import_parquet(False)
        super().__init__(datapipe, storage_options)
        self.groups: _Groups | None = None
        if isinstance(self.source, PathList):
            self.paths = self.source.paths
            plan = plan_pieces(self.paths, "row groups", 1, storage_options=self.storage_options)
            self.groups = _Groups(plan)
            self.listed = plan.listed()

    @property
    def by_index(self) -> bool:  # type: ignore[override]
        return self.groups is not None

    def records(self, item: Any) -> RowGroups:
        return RowGroups(self.path_of(item), self.storage_options)

    def iterate(self, context: Context) -> NodeIterator[tuple[str, int]]:
        if self.groups is None:
            return super().iterate(context)
        count = len(self.groups)
        return ListedKeys(self, context, self.groups, count, lambda: range(count))

    def __len__(self) -> int:
        """Row groups. Raises: TypeError behind a node that yields paths."""
        if self.groups is None:
            raise TypeError("list_row_groups knows its length if it is given paths")
        return len(self.groups)


class _Groups(Sequence[tuple[str, int]]):
    """The row groups of all files of a plan."""

    holds_only_data = True

    def __init__(self, plan: PiecePlan) -> None:
        self._paths, self._sizes = plan.paths, plan.sizes
        self._ends = np.cumsum(plan.group_counts)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: Any) -> Any:
        file = int(np.searchsorted(self._ends, number, side="right"))
        planned, now = self._sizes[file], None if is_remote(self._paths[file]) else size_of(self._paths[file])
        if None not in (planned, now) and planned != now:
            raise ValueError(
                f"{self._paths[file]} has changed since its row groups were listed, when the graph was built: it has "
                f"{now} bytes, and had {planned}. Restore it, or build the graph anew and begin the epoch anew"
            )
        return self._paths[file], int(number - (self._ends[file - 1] if file else 0))
