"""``read_parquet``: rows or batches of parquet files, from any row on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.pieces.plan import Piece
from torchpipe.formats.tables.parquet import ParquetBlocks, import_parquet, rows_in
from torchpipe.iter._shared.paths import PathList, Paths
from torchpipe.iter._shared.pieces import rows_kept
from torchpipe.iter._shared.tables import TableReader
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.plain import plain

__all__ = ["ParquetReader"]


@functional_datapipe("read_parquet")
class ParquetReader(TableReader):
    """Yields the rows of parquet files as dicts, or with ``batch_size`` dicts of columns.

    ``datapipe`` yields paths, pairs (path, row group) as ``list_row_groups`` does, or pieces (``shard_pieces``); or
    give paths themselves, in which braces and globs may stand. URLs are opened by fsspec with ``storage_options``.
    ``columns`` are those to read and hand out, in their order. ``filter`` keeps the rows for which it is true: an
    expression of :mod:`pyarrow.compute`, or a list such as ``[("age", ">", 3)]``; row groups that cannot have any are
    not read.

    ``format`` of batches: ``"torch"`` (the default) and ``"numpy"`` make arrays of numbers, booleans and fixed-size
    lists of them, lists of arrays of lists of varying length, and lists of Python objects of all else (numpy also has
    dates); ``"python"`` makes lists, ``"arrow"`` record batches. Of rows, ``"python"`` (the default) makes Python
    objects; ``"torch"`` and ``"numpy"`` make of each value what stands in such a batch: of a list of tokens a tensor or
    array, without a Python object for each token. A null in an array is an error, unless ``fill_null`` says what is to
    stand there: a value, or a dict of one for each column. No batch goes over the end of a row group:
    its last one may be shorter (``rebatch`` evens them out). ``use_threads`` lets pyarrow decode columns in parallel.

    State: the row group and the row in it. Resuming decodes that row group again, up to the row. A sharding point
    straight after it makes a shard read only the row groups that hold rows, or batches, of its own.

    Raises: ImportError without pyarrow; ValueError, TypeError for wrong arguments; while iterating, ValueError for a
    missing column, a null in an array and what is no parquet file, with the path and the row; StateError where a file
    has changed since a state was saved.
    """

    unit = "row groups"
    fingerprint_ignores = ("storage_options", "use_threads")

    def __init__(
        self,
        datapipe: Paths,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        batch_size: int | None = None,
        format: str | None = None,
        fill_null: Any = None,
        use_threads: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        import_parquet(filter is not None)
        super().__init__(datapipe, columns, filter, batch_size, format, fill_null, storage_options)
        self.use_threads = use_threads

    def piece_of(self, item: object) -> tuple[str, tuple[int, int] | None]:
        if isinstance(item, Piece) or not (isinstance(item, tuple | list) and len(item) == 2):
            return super().piece_of(item)
        path, group = item[0], plain(item[1])
        if type(group) is not int:
            raise TypeError(f"read_parquet needs paths or pairs (path, row group), got {item!r:.80}")
        return super().piece_of(path)[0], (group, group + 1)

    def blocks(self, path: str, part: bool) -> ParquetBlocks:
        return ParquetBlocks(path, self.columns, self.keep, self.use_threads, self.storage_options, part=part)

    def __len__(self) -> int:
        """Rows or batches, known from the ends of files that are named. Raises: TypeError after a node that yields
        paths, with a filter, and of one shard's part of pieces that are shuffled.
        """
        if self.keep is not None:
            raise TypeError("read_parquet knows its length if it is given paths, and no filter")
        kept = rows_kept(self.source)
        if kept is None and isinstance(self.source, PathList):
            kept = [rows_in(path, self.storage_options) for path in self.source.paths]
        if kept is None:
            raise TypeError("read_parquet knows its length if it is given paths, and no filter")
        size = self.batch_size or 1
        return sum(int(-(-rows // size)) for groups in kept for rows in groups)
