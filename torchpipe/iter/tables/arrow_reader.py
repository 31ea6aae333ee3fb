"""``read_arrow``: rows or batches of Arrow files, from any row on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.formats.tables.arrow import ArrowBlocks
from torchpipe.formats.tables.columns import import_pyarrow
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.tables import TableReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["ArrowReader"]


@functional_datapipe("read_arrow")
class ArrowReader(TableReader):
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

    unit = "record batches"

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
