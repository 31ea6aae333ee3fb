"""Tables in files that hold them in blocks of rows, read row by row or batch by batch from any row on.

``parquet`` and ``arrow`` say what a block is: a row group, a record batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.records import Records
from torchpipe.formats.tables.columns import RowMaker, batch_maker

__all__ = ["Blocks", "BlocksPart", "TableRecords", "filtered", "in_chunks", "is_of_content"]

_ROWS_AT_ONCE = 512  # dicts that are made together
_CHUNK_BYTES = 1 << 24  # that are decoded together, in whole batches
_CHUNK_ROWS = 1 << 16  # and no more rows than these: a size is not known of what dictionaries stand for


class Blocks(ABC):
    """An open table file: what :class:`TableRecords` needs to know of it."""

    path: str
    stamp: list[int | str | None] | None
    unit: str
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
        self.path, self.stamp, self.unit = blocks.path, blocks.stamp, blocks.unit
        self.count = stop - first
        self.first = first
        self._blocks = blocks
        if not 0 <= first <= stop <= blocks.count:
            blocks.close()
            last = first if not 0 <= first < blocks.count else stop - 1
            raise ValueError(f"{self.path} has no {self.unit} {last}: it has {blocks.count}")
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
