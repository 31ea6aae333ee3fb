"""Tables in files that hold them in blocks of rows, read row by row or batch by batch from any row on.

The formats say what a block is: a row group, a record batch.

Arrow files of both kinds, record batch by record batch; imports pyarrow when used.

The *file* format (it begins with ``ARROW1``, Feather V2 is it) ends with a table of its batches. The *stream* format,
in which Hugging Face ``datasets`` keeps its data, has none: pyarrow goes through its messages when it is opened, which
touches the headers of a mapped file alone. A remote stream is read into memory for that.
"""

from __future__ import annotations

import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.records import Records
from torchpipe.formats.storage.content import open_stored, open_up_to
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.streams import local_stamp, stamp_of
from torchpipe.formats.tables.columns import RowMaker, batch_maker, check_columns_of, import_pyarrow, without_views

__all__ = [
    "ArrowBlocks",
    "Blocks",
    "BlocksPart",
    "TableRecords",
    "arrow_batches",
    "filtered",
    "in_chunks",
    "is_of_content",
]

_ROWS_AT_ONCE = 512  # dicts that are made together
_CHUNK_BYTES = 1 << 24  # that are decoded together, in whole batches
_CHUNK_ROWS = 1 << 16  # and no more rows than these: a size is not known of what dictionaries stand for


class Blocks(ABC):
    """An open table file: what :class:`TableRecords` needs to know of it."""

    path: str
    stamp: list[int | str | None] | None
    block_name: str
    """The name of a block, in texts."""
    count: int
    """The number of blocks."""
    columns: Sequence[str]
    """The names of those that are handed out."""
    first = 0
    """The number of the first one in the file."""

    def narrow(self, first: int, stop: int) -> None:
        """No block is going to be read but those from ``first`` up to ``stop``: a hint."""
        return

    @abstractmethod
    def length(self, block: int) -> int | None:
        """The number of a block's rows that are handed out; None if that takes reading it, as a filter does."""

    @abstractmethod
    def row_bytes(self, block: int) -> float:
        """About how many bytes a row of it has, in the columns that are read; of an empty one, 0."""

    @abstractmethod
    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        """The rows that are handed out of a block, in record batches of ``rows``; the last may be shorter."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


class BlocksPart(Blocks):
    """The blocks of another one from ``first`` up to ``stop``.

    Raises: ValueError, once the other is closed, if it does not have them.
    """

    def __init__(self, blocks: Blocks, first: int, stop: int) -> None:
        self.path, self.stamp, self.block_name = blocks.path, blocks.stamp, blocks.block_name
        self.count = stop - first
        self.first = first
        self._blocks = blocks
        if not 0 <= first <= stop <= blocks.count:
            blocks.close()
            last = first if not 0 <= first < blocks.count else stop - 1
            raise ValueError(f"{self.path} has no {self.block_name} {last}: it has {blocks.count}")
        blocks.narrow(first, stop)

    def length(self, block: int) -> int | None:
        return self._blocks.length(self.first + block)

    def row_bytes(self, block: int) -> float:
        return self._blocks.row_bytes(self.first + block)

    def chunks(self, block: int, rows: int) -> Iterator[Any]:
        return self._blocks.chunks(self.first + block, rows)

    def close(self) -> None:
        self._blocks.close()


def is_of_content(error: Exception) -> bool:
    """True if pyarrow says that of what it reads; False of an error of whoever reads the file for it."""
    return isinstance(error, ValueError) or (type(error) is OSError and error.errno is None)


def filtered(batches: Iterator[Any], columns: Sequence[str], keep: Any) -> Iterator[Any]:
    """The ``columns`` of ``batches``, and of their rows those for which ``keep``, an expression, is true; None: all."""
    if keep is None:
        return (batch.select(columns) for batch in batches)
    scanner = import_module("pyarrow.dataset").Scanner
    options = {"columns": columns, "filter": keep, "use_threads": False}
    scans = (scanner.from_batches([batch], schema=batch.schema, **options) for batch in batches)
    return (kept for scan in scans for kept in scan.to_batches())


def in_chunks(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows in record batches of ``rows``; the last may be shorter, none is empty."""
    held: list[Any] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            part = batch.slice(0, rows - count)
            batch = batch.slice(part.num_rows)
            held.append(part)
            count += part.num_rows
            if count == rows:
                yield _joined(held)
                held, count = [], 0
    if held:
        yield _joined(held)


def _joined(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    import pyarrow

    return pyarrow.Table.from_batches(parts).combine_chunks().to_batches()[0]


class TableRecords(Records[Any]):
    """Rows as dicts, or batches of ``batch_size`` rows; the last one of a block may have fewer.

    Position: the block, and the row in it, of the rows that are handed out. Going there decodes that block alone.
    """

    def __init__(self, blocks: Blocks, batch_size: int | None, form: str, fill_null: Any) -> None:
        self.path = blocks.path
        self.stamp = blocks.stamp
        self._blocks = blocks
        self._unit = batch_size or 1
        self._make = None if batch_size is None else batch_maker(form, fill_null)
        self._rows = RowMaker(form, fill_null)
        self._block = 0
        self._row = 0  # of the next record, in its block
        self._open: Iterator[Any] | None = None  # the chunks of the block that are still to come
        self._chunk: Any = None
        self._first = 0  # the row that the chunk begins with
        self._cut: Callable[[int, int], Any] | None = None  # makes batches of the chunk
        self._made: list[Any] = []  # rows of the chunk, every ``step``-th from ``_made_first`` on
        self._made_first = 0

    def __next__(self) -> Any:
        while self._block < self._blocks.count:
            if self._to_chunk():
                return self._batch() if self._make is not None else self._single()
            self._leave_block()
        raise StopIteration

    def _to_chunk(self) -> bool:
        """Go on to the chunk that holds the row; False if the block ends before."""
        if self._chunk is not None and self._row < self._first + self._chunk.num_rows:
            return True
        if self._open is None:
            length = self._blocks.length(self._block)
            if length is not None and self._row >= length:
                return False
            rows = _CHUNK_BYTES // max(self._blocks.row_bytes(self._block), _CHUNK_BYTES / _CHUNK_ROWS)
            units = max(1, int(rows) // self._unit)
            self._open, self._chunk, self._first = self._blocks.chunks(self._block, units * self._unit), None, 0
        while self._chunk is None or self._row >= self._first + self._chunk.num_rows:
            self._first += 0 if self._chunk is None else self._chunk.num_rows
            self._chunk, self._cut, self._made = next(self._open, None), None, []
            if self._chunk is None:
                return False
        return True

    def _batch(self) -> Any:
        assert self._make is not None
        if self._cut is None:
            self._cut = self._cutter(self._chunk)
        first = self._row - self._first
        last = min(first + self._unit, self._chunk.num_rows)
        batch = self._cut(first, last)
        self._row += last - first
        if last - first < self._unit:
            self._leave_block()  # so that a position in a block is one between whole batches
        return batch

    def _cutter(self, chunk: Any) -> Callable[[int, int], Any]:
        make = self._make
        assert make is not None
        try:
            return make(chunk)
        except ValueError:  # of one batch in it: the others come, and it raises in its place
            return lambda first, last: make(chunk.slice(first, last - first))(0, last - first)

    def _single(self) -> Any:
        index, rest = divmod(self._row - self._made_first, self.step)
        if rest or not 0 <= index < len(self._made):
            self._make_rows()
            index = 0
        self._row += 1
        return self._made[index]

    def _make_rows(self) -> None:
        part = self._chunk.slice(self._row - self._first, _ROWS_AT_ONCE * self.step)
        if self.step > 1:
            part = part.take(list(range(0, part.num_rows, self.step)))
        while True:
            try:
                self._made = self._rows(part)
                break
            except ValueError:  # of one row in it: those before it come first, and it raises in its place
                if part.num_rows == 1:
                    raise
                part = part.slice(0, part.num_rows // 2)
        self._made_first = self._row

    def _leave_block(self) -> None:
        self._block += 1
        self._row = 0
        self._open = self._chunk = self._cut = None
        self._made = []

    def skip(self, count: int) -> int:
        passed = 0
        while passed < count and self._block < self._blocks.count:
            length = self._blocks.length(self._block)
            if length is None:  # only reading tells
                reach = self._first + self._chunk.num_rows if self._to_chunk() else self._row
            else:
                reach = length
            now = min(-(-(reach - self._row) // self._unit), count - passed)
            self._row = min(reach, self._row + now * self._unit)
            passed += now
            if self._row >= reach and (length is not None or not self._to_chunk()):
                self._leave_block()
        return passed

    def leave_out(self) -> bool:
        return self._to_chunk() and super().leave_out()  # what cannot be decoded at all raises

    def position(self) -> dict[str, Any]:
        return {"block": self._block, "row": self._row}

    def go_to(self, position: dict[str, Any]) -> None:
        block, row = position["block"], position["row"]
        if not (type(block) is int and type(row) is int and 0 <= block <= self._blocks.count and row >= 0):
            raise StateError(f"the state names no row of {self.path}, but {position!r:.60}")
        length = self._blocks.length(block) if block < self._blocks.count else 0
        if (length is not None and row > length) or row % self._unit:
            raise StateError(f"{self.path} has no row {row} in its block {block} to go on from: is it the same file?")
        self._block, self._row = block, row

    def where(self) -> str:
        return f"row {self._row} of block {self._blocks.first + self._block}"

    def close(self) -> None:
        self._open = self._chunk = self._cut = None
        self._made = []
        self._blocks.close()


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

    block_name = "record batch"

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
