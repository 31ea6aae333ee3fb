"""Arrow files of both kinds, record batch by record batch; imports pyarrow when used.

The *file* format (it begins with ``ARROW1``, Feather V2 is it) ends with a table of its batches. The *stream* format,
in which Hugging Face ``datasets`` keeps its data, has none: pyarrow goes through its messages when it is opened, which
touches the headers of a mapped file alone. A remote stream is read into memory for that.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from torchpipe.formats.storage.content import open_stored, open_up_to
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.streams import local_stamp, stamp_of
from torchpipe.formats.tables.blocks import Blocks, filtered, in_chunks, is_of_content
from torchpipe.formats.tables.columns import check_columns_of, import_pyarrow, without_views

__all__ = ["ArrowBlocks", "arrow_batches"]

_MAGIC = b"ARROW1"
_WORD = struct.Struct("<I")
_BATCHES_FIELD = 4 + 2 * 3  # where a table tells the place of its fourth field
_BLOCK = struct.Struct("<qi4xq")  # where it begins, the bytes of its header and of its body


def arrow_batches(path: str, storage_options: Mapping[str, Any] | None) -> int | None:
    """The number of record batches that can be read by themselves; None where each needs the bytes before: of a stream
    at a URL, and of one with dictionaries between its batches. Raises: as :class:`ArrowBlocks`.
    """
    file = None
    if is_remote(path):
        file = open_stored(path, storage_options)
        if file.read(len(_MAGIC)) != _MAGIC:
            file.close()
            return None
    blocks = ArrowBlocks(path, None, None, storage_options, opened=file)
    try:
        return None if blocks.in_order else blocks.count
    finally:
        blocks.close()


def _batch_end(file: Any, batch: int) -> int:
    """The byte behind a record batch of a file: the blocks that ``Footer`` of Arrow's ``format/File.fbs`` lists."""
    file.seek(-len(_MAGIC) - _WORD.size, os.SEEK_END)
    (size,) = _WORD.unpack(file.read(_WORD.size))
    file.seek(-len(_MAGIC) - _WORD.size - size, os.SEEK_END)
    footer = file.read(size)

    def place(at: int, form: str) -> int:
        return at + int(struct.unpack_from(form, footer, at)[0])

    root = place(0, "<I")
    table = root - struct.unpack_from("<i", footer, root)[0]
    blocks = place(root + struct.unpack_from("<H", footer, table + _BATCHES_FIELD)[0], "<I") + _WORD.size
    begin, header, body = _BLOCK.unpack_from(footer, blocks + batch * _BLOCK.size)
    return int(begin + header + body)


class ArrowBlocks(Blocks):
    """The record batches of an Arrow file: its ``columns``, and the rows that ``keep`` keeps. Local files are mapped.
    ``in_order`` is true if they need those before. At a URL nothing is read ahead of the ``part`` that :meth:`narrow`
    names, of a file; ``opened`` is such a file that is open.

    Raises: ValueError for a column that the file does not have, and for a file that is damaged, cut off or no Arrow
    file; EOFError for an empty one.
    """

    unit = "record batch"

    def __init__(
        self,
        path: str,
        columns: Sequence[str] | None,
        keep: Any,
        storage_options: Mapping[str, Any] | None,
        *,
        part: bool = False,
        opened: Any = None,
    ) -> None:
        pa = import_pyarrow()

        self.path = path
        self._keep = keep
        self._ipc = import_module("pyarrow.ipc")
        self._last: tuple[int, Any] = (-1, None)  # the batch that was read last
        self._opened: Any = None  # at a URL, of a file of which a part is read
        if is_remote(path):
            is_known = part or opened is not None
            file = opened or (open_up_to(path, None, storage_options) if part else open_stored(path, storage_options))
            self.stamp = stamp_of(file)
            self._is_file = is_known or file.read(len(_MAGIC)) == _MAGIC
            file.seek(0)
            self._source = pa.PythonFile(file)
            if part:
                self._opened = file
            elif not self._is_file:
                with file:
                    self._source = pa.BufferReader(file.read())
        else:
            self._source = pa.memory_map(os.fsencode(path))
            self.stamp = local_stamp(self._source.size(), self._source.read_at)
            self._is_file = self._source.read_at(len(_MAGIC), 0) == _MAGIC
        if self.stamp is not None and not self.stamp[0]:
            self._source.close()
            raise EOFError(f"{path} is empty, and so no Arrow file: was it written to its end?")
        try:
            self._open()
        except (pa.ArrowInvalid, OSError) as error:
            self.close()
            if not is_of_content(error):
                raise
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

    def narrow(self, first: int, stop: int) -> None:
        if self._opened is not None and first < stop:
            self._opened.raw.stop = _batch_end(self._opened, stop - 1)

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
