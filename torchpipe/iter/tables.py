"""Tables in files.

- ``read_arrow``: rows or batches of Arrow files, from any row on.
- ``read_parquet``: rows or batches of parquet files, from any row on.
- ``list_row_groups``: what parquet files can be divided and shuffled by.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.pieces.plan import Piece, PiecePlan, make_piece, plan_pieces
from torchpipe.formats.tables.blocks import ArrowBlocks, Blocks, BlocksPart, TableRecords
from torchpipe.formats.tables.columns import (
    check_columns_of,
    check_fill_null,
    check_filter,
    check_format,
    checked_columns,
    import_pyarrow,
)
from torchpipe.formats.tables.parquet import (
    NoBlocks,
    ParquetBlocks,
    Partitions,
    RowGroups,
    check_fields,
    groups_in,
    hive_fields,
    import_parquet,
    is_at_hand,
)
from torchpipe.iter._shared.paths import ListedKeys, PathList, Paths
from torchpipe.iter._shared.pieces import rows_kept
from torchpipe.iter._shared.reading import FileReader
from torchpipe.node.context import Context
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_choice, check_count

__all__ = ["ArrowReader", "ParquetReader", "RowGroupLister"]


class _TableReader(FileReader[Any]):
    """Base of the readers of tables: rows as dicts, or batches of ``batch_size`` rows."""

    def __init__(
        self,
        paths: Paths,
        columns: Sequence[str] | None,
        keep: Any,
        batch_size: int | None,
        format: str | None,
        fill_null: Any,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(paths, storage_options)
        self.columns = checked_columns(columns)
        self.keep = check_filter(keep)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size, at_least=1)
        self.format = check_format(format, self.batch_size)
        self.fill_null = check_fill_null(fill_null, self.format)

    @abstractmethod
    def blocks(self, path: str, part: bool) -> Blocks:
        """The blocks of rows in a file, of which ``part`` says that some are read alone."""

    def records(self, item: Any) -> TableRecords:
        path, span = self.piece_of(item)
        blocks = self.blocks(path, span is not None)
        try:
            check_columns_of(path, blocks.columns, self.fill_null if isinstance(self.fill_null, Mapping) else ())
        except ValueError:
            blocks.close()
            raise
        part_of = blocks if span is None else BlocksPart(blocks, *span)
        return TableRecords(part_of, self.batch_size, self.format, self.fill_null)


@functional_datapipe("read_arrow")
class ArrowReader(_TableReader):
    """Yields the rows of Arrow files as dicts, or with ``batch_size`` dicts of columns: the file (Feather) and the
    stream format, which Hugging Face ``datasets`` keeps its data in.

    ``datapipe`` yields paths, or pieces (``shard_pieces``); or give paths themselves, in which braces and globs may
    stand. URLs are opened by fsspec with ``storage_options``; local files are mapped into memory. ``columns``,
    ``filter``, ``batch_size``, ``format`` and ``fill_null`` are those of :class:`~torchpipe.iter.ParquetReader`; a
    record batch is what a row group is there. Views of texts (``string_view``) are read as ``large_string``.

    State: the record batch and the row in it, to which resuming goes at once; in a stream with dictionaries it passes
    over the batches before. Opening a stream looks for its batches: it touches the headers of a mapped file, and reads
    a remote one into memory. A sharding point straight after it passes over what the shard does not keep.

    Raises: as :class:`~torchpipe.iter.ParquetReader`, also for a file that is cut off; EOFError for an empty one.
    """

    piece_unit = "record batches"

    def __init__(
        self,
        datapipe: Paths,
        columns: Sequence[str] | None = None,
        *,
        filter: Any = None,
        batch_size: int | None = None,
        format: str | None = None,
        fill_null: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        import_pyarrow()
        super().__init__(datapipe, columns, filter, batch_size, format, fill_null, storage_options)

    def blocks(self, path: str, part: bool) -> ArrowBlocks:
        return ArrowBlocks(path, self.columns, self.keep, self.storage_options, part=part)

    def first_bytes(self, path: str, part: bool) -> tuple[int, int | None]:
        return (-(1 << 16), None) if part else (0, None)


@functional_datapipe("read_parquet")
class ParquetReader(_TableReader):
    """Yields the rows of parquet files as dicts, or with ``batch_size`` dicts of columns.

    ``datapipe`` yields paths, or pieces, as ``shard_pieces`` and ``list_row_groups`` make them; or give paths
    themselves, in which braces and globs may stand. URLs are opened by fsspec with ``storage_options``.
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

    ``partitioning="hive"`` adds the columns that stand in the paths (``year=2024/month=01/part-0.parquet``) behind
    those of the file, of the types that ``pyarrow.dataset`` gives them: int32 if all values are such numbers, else
    text. Or a ``pyarrow.Schema`` says names and types, as it has to behind a node that yields paths. ``columns`` and
    ``filter`` may name them. A file of which a filter's conditions on them keep nothing is not opened: those of a list;
    an expression has to be of these columns alone, else row groups are left out. None, the default, reads what the
    files hold: a folder named ``a=b`` adds nothing by itself.

    State: the row group and the row in it. Resuming decodes that row group again, up to the row. A sharding point
    straight after it makes a shard read only the row groups that hold rows, or batches, of its own.

    Raises: ImportError without pyarrow; ValueError, TypeError for wrong arguments; while iterating, ValueError for a
    missing column, a null in an array and what is no parquet file, with the path and the row; StateError where a file
    has changed since a state was saved.
    """

    piece_unit = "row groups"
    begins_at = -(1 << 16)  # where the table of what is in it stands
    fingerprint_ignores = ("storage_options", "use_threads", "partitions")

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
        partitioning: Any = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        import_parquet(filter is not None)
        super().__init__(datapipe, columns, filter, batch_size, format, fill_null, storage_options)
        self.use_threads = use_threads
        self.partitions: Partitions | None = None
        self.partitioning: Any = None  # plain: names and types, and a digest of what the paths that are named say
        if partitioning is not None:
            self._divide(partitioning, filter)

    def _divide(self, partitioning: Any, filter: Any) -> None:
        """Raises: ValueError, TypeError."""
        paths = self.source.paths if isinstance(self.source, PathList) else ()
        if isinstance(partitioning, str):
            check_choice("partitioning", partitioning, ("hive",))
            if not paths:
                raise ValueError(
                    "partitioning='hive' makes types of the values in all paths, which are not known behind a node "
                    "that yields them: give it the names and types, partitioning=pyarrow.schema([('year', 'int32')])"
                )
            schema = hive_fields(paths)
        else:
            schema = check_fields(partitioning)
        self.partitions = Partitions(schema, filter)
        said: dict[str, bytes] = {}  # by folder, of which there are fewer than files
        made = hashlib.sha256()
        for path in paths:
            folder = path.rpartition("/")[0]
            if folder not in said:
                said[folder] = repr([value.as_py() for value in self.partitions.values(path).values()]).encode()
            made.update(said[folder])
        self.partitioning = [[[field.name, str(field.type)] for field in schema], made.hexdigest()[:16]]

    def first_bytes(self, path: str, part: bool) -> tuple[int, int | None]:
        return (0, 0) if is_at_hand(path) else super().first_bytes(path, part)

    def records(self, item: Any) -> TableRecords:
        path = self.piece_of(item)[0]
        if self.partitions is None or not self.partitions.drops(path):
            return super().records(item)
        return TableRecords(NoBlocks(path), self.batch_size, self.format, self.fill_null)

    def blocks(self, path: str, part: bool) -> ParquetBlocks:
        return ParquetBlocks(
            path, self.columns, self.keep, self.use_threads, self.storage_options, part=part, partitions=self.partitions
        )

    def __len__(self) -> int:
        """Rows or batches, known from the ends of files that are named. Raises: TypeError after a node that yields
        paths, with a filter, and of one shard's part of pieces that are shuffled.
        """
        if self.keep is not None:
            raise TypeError("read_parquet knows its length if it is given paths, and no filter")
        kept = rows_kept(self.source)
        if kept is None and isinstance(self.source, PathList):
            kept = [
                [group.num_rows for group in groups_in(path, self.storage_options)[1]] for path in self.source.paths
            ]
        if kept is None:
            raise TypeError("read_parquet knows its length if it is given paths, and no filter")
        size = self.batch_size or 1
        return sum(int(-(-rows // size)) for groups in kept for rows in groups)


class _Pieces(RowGroups):
    def made(self, group: int) -> Piece:
        return make_piece(self.path, "row groups", group, group + 1, self.stamp)


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
