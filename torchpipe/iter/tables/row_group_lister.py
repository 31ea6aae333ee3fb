"""``list_row_groups``: what parquet files can be divided and shuffled by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.pieces.plan import Piece, PiecePlan, plan_pieces
from torchpipe.formats.tables.parquet import RowGroups, import_parquet
from torchpipe.iter._shared.paths import ListedKeys, PathList, Paths
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.context import Context
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["RowGroupLister"]


class _Pieces(RowGroups):
    def made(self, group: int) -> Piece:
        return Piece(self.path, "row groups", group, group + 1, self.stamp)


@functional_datapipe("list_row_groups")
class RowGroupLister(FileReader[Piece]):
    """Yields a piece for each row group of parquet files: small things to shuffle, to choose from and to divide.

    ``read_parquet`` reads them: ``RowGroupLister(paths).shuffle().sharding_filter().read_parquet()`` lets a shard read
    whole row groups, and those of its own alone, as ``ParquetReader(paths).shard_pieces(piece_bytes=1)`` does. A piece
    has its file's ``path`` and the number of its row group, ``start``; reading it is an error where the file is another
    one by then. Paths as for :class:`~torchpipe.iter.ParquetReader`.

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
        self.groups: PiecePlan | None = None
        if isinstance(self.source, PathList):
            self.paths = self.source.paths
            self.groups = plan_pieces(self.paths, "row groups", 1, storage_options=self.storage_options)
            self.listed = self.groups.listed()

    @property
    def by_index(self) -> bool:  # type: ignore[override]
        return self.groups is not None

    def records(self, item: Any) -> RowGroups:
        return _Pieces(self.path_of(item), self.storage_options)

    def iterate(self, context: Context) -> NodeIterator[Piece]:
        if self.groups is None:
            return super().iterate(context)
        count = len(self.groups)
        return ListedKeys(self, context, self.groups, count, lambda: range(count))

    def __len__(self) -> int:
        """Row groups. Raises: TypeError behind a node that yields paths."""
        if self.groups is None:
            raise TypeError("list_row_groups knows its length if it is given paths")
        return len(self.groups)
