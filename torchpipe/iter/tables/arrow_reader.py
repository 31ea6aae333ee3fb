"""``read_arrow``: rows or batches of Arrow files, from any row on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.tables.arrow import ArrowBlocks
from torchpipe.formats.tables.blocks import TableRecords
from torchpipe.formats.tables.columns import batch_maker, check_columns, check_filter, check_format, import_pyarrow
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader, path_of
from torchpipe.node.datapipe import functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["ArrowReader"]


@functional_datapipe("read_arrow")
class ArrowReader(FileReader[Any]):
    """Yields the rows of Arrow files as dicts, or with ``batch_size`` dicts of columns: the file (Feather) and the
    stream format, which Hugging Face ``datasets`` keeps its data in.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by
    fsspec with ``storage_options``; local files are mapped into memory. ``columns``, ``filter``, ``batch_size``,
    ``format`` and ``fill_null`` are those of :class:`~torchpipe.iter.ParquetReader`; a record batch is what a row
    group is there.

    State: the record batch and the row in it, to which resuming goes at once; in a stream with dictionaries it passes
    over the batches before. Opening a stream looks for its batches: it touches the headers of a mapped file, and reads
    a remote one into memory. A sharding point straight after it passes over what the shard does not keep.

    Raises: as :class:`~torchpipe.iter.ParquetReader`, also for a file that is cut off; EOFError for an empty one.
    """

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
        super().__init__("read_arrow", datapipe, storage_options)
        import_pyarrow()
        self.columns = check_columns(columns)
        self.keep = check_filter(filter)
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size, at_least=1)
        self.form = check_format(format, self.batch_size)
        self.fill_null = fill_null

    def records(self, item: Any) -> TableRecords:
        blocks = ArrowBlocks(path_of("read_arrow", item), self.columns, self.keep, self.storage_options)
        make = None if self.batch_size is None else batch_maker(self.form, self.fill_null)
        return TableRecords(blocks, self.batch_size, make)
