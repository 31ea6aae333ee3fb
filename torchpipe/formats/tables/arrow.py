"""Arrow files of both kinds, record batch by record batch. Runs wherever its reader runs; imports pyarrow when used.

The *file* format (it begins with ``ARROW1``, Feather V2 is it) ends with a table of its batches. The *stream* format,
in which Hugging Face ``datasets`` keeps its data, has none: where its batches are is found by hopping from header to
header (Arrow's columnar format, "Encapsulated message format"; the headers are flatbuffers, ``Message.fbs``), when it
is opened.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, BinaryIO

from torchpipe.formats.places.content import open_stored
from torchpipe.formats.places.paths import is_remote
from torchpipe.formats.tables.blocks import Blocks, in_chunks
from torchpipe.formats.tables.columns import import_pyarrow

__all__ = ["ArrowBlocks", "Message", "messages_in"]

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
_MOST_HEADER_BYTES = 1 << 28
_HEADERS_BYTES = 1 << 12  # read at once when hopping from one to the next
_DICTIONARY, _BATCH = 2, 3  # of the union MessageHeader


@dataclass(frozen=True)
class Message:
    """A message of a stream: where it begins, what it is, and, of a record batch, its number of rows."""

    offset: int
    kind: int
    rows: int


def messages_in(path: str, file: BinaryIO) -> Iterator[Message]:
    """The messages of a stream; of each, the header alone is read.

    Raises: EOFError where the file ends without the mark for that, ValueError for what is no header.
    """
    size = file.seek(0, os.SEEK_END)
    offset = 0
    while True:
        file.seek(offset)
        prefix = file.read(8)
        first, second = struct.unpack("<II", prefix.ljust(8, b"\0"))
        length, begin = (second, 8) if first == _CONTINUES else (first, 4)  # 4: before Arrow 0.15
        if len(prefix) < begin:
            raise EOFError(f"{path} is cut off: the mark at the end of an Arrow stream is missing at byte {offset}")
        if not length:
            return
        if length > min(size - offset, _MOST_HEADER_BYTES):
            raise EOFError(f"{path} is cut off, or no Arrow file: a header of {length} bytes at byte {offset}")
        file.seek(offset + begin)
        header = file.read(length)
        try:
            kind, rows, body = _read_header(header)
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path} is damaged, or no Arrow file: no header at byte {offset}") from error
        if body < 0 or rows < 0 or offset + begin + length + body > size:
            raise EOFError(f"{path} is cut off: {body} bytes should follow the header at byte {offset}")
        yield Message(offset, kind, rows)
        offset += begin + length + body


def _read_header(header: bytes) -> tuple[int, int, int]:
    """(kind, rows, bytes of the body) of the flatbuffer ``Message``."""
    (message,) = struct.unpack_from("<I", header)
    kind_at, header_at, body_at = (_field(header, message, number) for number in (1, 2, 3))
    kind = header[kind_at] if kind_at else 0
    (body,) = struct.unpack_from("<q", header, body_at) if body_at else (0,)
    rows = 0
    if kind == _BATCH and header_at:
        (inner,) = struct.unpack_from("<I", header, header_at)
        rows_at = _field(header, header_at + inner, 0)
        (rows,) = struct.unpack_from("<q", header, rows_at) if rows_at else (0,)
    return kind, rows, body


def _field(data: bytes, table: int, number: int) -> int:
    """Where field ``number`` of the table at ``table`` stands; 0 if it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error("no vtable")
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else 0


class ArrowBlocks(Blocks):
    """The record batches of an Arrow file: its ``columns``, and the rows that ``keep`` keeps. Local files are mapped.

    Raises: ValueError for a column that the file has not and for what is no Arrow file, EOFError for one that is cut
    off.
    """

    def __init__(
        self, path: str, columns: Sequence[str] | None, keep: Any, storage_options: Mapping[str, Any] | None
    ) -> None:
        pa = import_pyarrow()

        self.path = path
        self._keep = keep
        self._ipc = import_module("pyarrow.ipc")
        self._messages: list[Message] = []
        with open_stored(path, storage_options, _HEADERS_BYTES) as file:
            self.size = file.seek(0, os.SEEK_END)
            file.seek(0)
            self._is_file = file.read(len(_MAGIC)) == _MAGIC
            if not self._is_file:
                if not self.size:
                    raise EOFError(f"{path} is empty, and so no Arrow file: was it written to its end?")
                self._messages = list(messages_in(path, file))
        self._whole = any(message.kind == _DICTIONARY for message in self._messages)  # to be read in order
        self._batches = [message for message in self._messages if message.kind == _BATCH]
        self._source = pa.PythonFile(open_stored(path, storage_options)) if is_remote(path) else pa.memory_map(path)
        try:
            self._open()
        except (pa.ArrowInvalid, OSError) as error:
            self.close()
            raise ValueError(f"{path} is no Arrow file, or a damaged one: {error}") from error
        names = self._schema.names
        self._columns = list(columns or names)
        missing = [name for name in self._columns if name not in names]
        if missing:
            self.close()
            raise ValueError(f"{path} has no column {missing[0]!r}: its columns are {', '.join(names)}")

    def _open(self) -> None:
        self._reader: Any = self._ipc.open_file(self._source) if self._is_file else self._ipc.open_stream(self._source)
        self._reached = 0  # the batch that the reader of a stream stands before
        self._schema = self._reader.schema
        self.count = self._reader.num_record_batches if self._is_file else len(self._batches)

    def length(self, block: int) -> int | None:
        if self._keep is not None:
            return None
        return self._batches[block].rows if not self._is_file else int(self._batch(block).num_rows)

    def _batch(self, block: int) -> Any:
        if self._is_file:
            return self._reader.get_batch(block)
        if not self._whole:
            self._source.seek(self._batches[block].offset)
            return self._ipc.read_record_batch(self._ipc.read_message(self._source), self._schema)
        if block < self._reached:
            self._source.seek(0)
            self._reader, self._reached = self._ipc.open_stream(self._source), 0
        while True:
            batch = self._reader.read_next_batch()
            self._reached += 1
            if self._reached > block:
                return batch

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        batch = self._batch(block)
        batch.validate(full=True)  # what a damaged file says of its texts would be read wherever it leads
        return in_chunks(iter([batch.select(self._columns)]) if self._keep is None else self._filtered(batch), rows)

    def _filtered(self, batch: Any) -> Iterator[Any]:
        import pyarrow.dataset

        scanner = pyarrow.dataset.Scanner.from_batches(
            [batch], schema=self._schema, columns=self._columns, filter=self._keep, use_threads=False
        )
        yield from scanner.to_batches()

    def close(self) -> None:
        self._reader = None
        if not self._source.closed:
            self._source.close()
