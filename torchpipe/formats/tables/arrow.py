"""Arrow files of both kinds, record batch by record batch; imports pyarrow when used.

The *file* format (it begins with ``ARROW1``, Feather V2 is it) ends with a table of its batches. The *stream* format,
in which Hugging Face ``datasets`` keeps its data, has none: pyarrow goes through its messages when it is opened, which
touches the headers of a mapped file alone. A remote stream is read into memory for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from torchpipe.formats.storage.content import open_stored
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.streams import stamp_of
from torchpipe.formats.tables.blocks import Blocks, filtered, in_chunks
from torchpipe.formats.tables.columns import check_columns_of, import_pyarrow, without_views

__all__ = ["ArrowBlocks", "arrow_batches"]

_MAGIC = b"ARROW1"


def arrow_batches(path: str, storage_options: Mapping[str, Any] | None) -> int | None:
    """How many record batches can be read by themselves; None where each needs the bytes before: of a stream at a URL,
    and of one with dictionaries between its batches. Raises: as :class:`ArrowBlocks`.
    """
    if is_remote(path):
        with open_stored(path, storage_options, len(_MAGIC)) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None
    blocks = ArrowBlocks(path, None, None, storage_options)
    try:
        return None if blocks.in_order else blocks.count
    finally:
        blocks.close()


class ArrowBlocks(Blocks):
    """The record batches of an Arrow file: its ``columns``, and the rows that ``keep`` keeps. Local files are mapped.
    ``in_order`` is true if they need those before.

    Raises: ValueError for a column that the file does not have, and for a file that is damaged, cut off or no Arrow
    file; EOFError for an empty one.
    """

    unit = "record batch"

    def __init__(
        self, path: str, columns: Sequence[str] | None, keep: Any, storage_options: Mapping[str, Any] | None
    ) -> None:
        pa = import_pyarrow()

        self.path = path
        self._keep = keep
        self._ipc = import_module("pyarrow.ipc")
        self._last: tuple[int, Any] = (-1, None)  # the batch that was read last
        with open_stored(path, storage_options) as file:
            self.stamp = stamp_of(file)
            self._is_file = file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            whole = file.read() if is_remote(path) and not self._is_file else None
        if self.stamp is not None and not self.stamp[0]:
            raise EOFError(f"{path} is empty, and so no Arrow file: was it written to its end?")
        if whole is not None:
            self._source = pa.BufferReader(whole)
        else:
            self._source = pa.PythonFile(open_stored(path, storage_options)) if is_remote(path) else pa.memory_map(path)
        try:
            self._open()
        except (pa.ArrowInvalid, OSError) as error:
            self.close()
            raise ValueError(f"{path} is no Arrow file, or is damaged or cut off: {error}") from error
        names = self._schema.names
        self.columns = list(columns or names)
        try:
            check_columns_of(path, names, self.columns)
        except ValueError:
            self.close()
            raise

    def _open(self) -> None:
        self._begin: list[int] = []  # where the batches of a stream begin
        self.in_order = False  # dictionaries between them belong to those that follow
        if not self._is_file:
            self._find_batches()
        self._reader: Any = self._ipc.open_file(self._source) if self._is_file else self._ipc.open_stream(self._source)
        self._reached = 0  # the batch that the reader of a stream stands before
        self._schema = self._reader.schema
        self._plain = without_views(self._schema)
        self.count = self._reader.num_record_batches if self._is_file else len(self._begin)

    def _find_batches(self) -> None:
        messages = self._ipc.MessageReader.open_stream(self._source)
        while True:
            begin = self._source.tell()
            try:
                kind = messages.read_next_message().type
            except StopIteration:
                if self._source.tell() == begin:
                    raise OSError(f"the mark at the end of a stream is missing at byte {begin}") from None
                self._source.seek(0)
                return
            if kind == "record batch":
                self._begin.append(begin)
            self.in_order = self.in_order or kind == "dictionary"

    def length(self, block: int) -> int | None:
        return None if self._keep is not None else int(self._batch(block).num_rows)

    def _batch(self, block: int) -> Any:
        if self._last[0] != block:
            self._last = (block, self._read_batch(block))
        return self._last[1]

    def _read_batch(self, block: int) -> Any:
        if self._is_file:
            return self._reader.get_batch(block)
        if not self.in_order:
            self._source.seek(self._begin[block])
            return self._ipc.read_record_batch(self._ipc.read_message(self._source), self._schema)
        if block < self._reached:
            self._source.seek(0)
            self._reader, self._reached = self._ipc.open_stream(self._source), 0
        while True:
            batch = self._reader.read_next_batch()
            self._reached += 1
            if self._reached > block:
                return batch

    def row_bytes(self, block: int) -> float:
        batch = self._batch(block).select(self.columns)
        size = batch.get_total_buffer_size()  # of a damaged batch, too, whose offsets are not to be followed
        return float(size / max(1, batch.num_rows))

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        batch = self._batch(block)
        batch.validate(full=True)  # what a damaged file says of its texts would be read wherever it leads
        batch = batch if self._plain == self._schema else batch.cast(self._plain)
        return in_chunks(filtered(iter([batch]), self.columns, self._keep), rows)

    def close(self) -> None:
        self._reader, self._last = None, (-1, None)
        if not self._source.closed:
            self._source.close()
