"""``parse_csv`` and ``parse_csv_as_dict``: the rows of tables in open files."""

from __future__ import annotations

import csv
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper, keep_newlines
from torchpipe.formats.text import CsvRows, check_decoding
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["CSVDictParser", "CSVParser"]


_MISSING: Any = object()  # stands in for a field that a row lacks
_REST: Any = object()  # the key of fields that are too many


class _Parser(StreamReader[Any]):
    binary = False

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        skip_lines: int,
        decoding: tuple[str, str] | None,
        return_path: bool,
        strict: bool,
        fmtparams: dict[str, Any],
    ) -> None:
        super().__init__(source_datapipe)
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.decoding = decoding
        self.return_path = return_path
        self.strict = strict
        self.fmtparams = fmtparams
        self.reader([])  # a misspelt parameter is an error here

    def reader(self, lines: Any) -> Any:
        raise NotImplementedError

    def records(self, path: str, stream: StreamWrapper) -> CsvRows:
        if self.strict:
            keep_newlines(stream)
        return self.rows(Content(path, None, opened=stream))

    def rows(self, content: Content) -> CsvRows:
        raise NotImplementedError


class _Rows(CsvRows):
    """The rows of one file as lists. An empty line is an empty row, of no wrong length."""

    way_out = ". Mend the file, or say strict=False"

    def __init__(self, node: _Parser, content: Content) -> None:
        super().__init__(content, node.reader, node.decoding, node.skip_lines, keeps_bom=not node.strict)
        self._strict = node.strict
        self._return_path = node.return_path

    def _row(self) -> Any:
        row = super()._row()
        if self._strict and row:
            self._width = self._width or len(row)
        return row

    def _record(self, row: Any) -> Any:
        if self._strict and row:
            self._check_width(row)
        return (self.path, row) if self._return_path else row


class _NamedRows(_Rows):
    """The rows of one file as dicts. Position: also the names of the columns."""

    def __init__(self, node: _Parser, content: Content) -> None:
        super().__init__(node, content)
        names = list(self._rows.fieldnames or ())  # which reads them, if they are in the file
        if self._strict and len(set(names)) < len(names):
            raise ValueError(f"{self.path} names a column twice: {names}. Pass fieldnames=, or say strict=False")
        self._width = len(names) if self._strict else 0
        self._advance_row()

    def _row(self) -> Any:
        return next(self._rows, None)

    def _record(self, row: Any) -> Any:
        if self._strict and (_REST in row or _MISSING in row.values()):
            more = row.pop(_REST, [])
            self._check_width([field for field in row.values() if field is not _MISSING] + more)
        return (self.path, row) if self._return_path else row

    def position(self) -> dict[str, Any]:
        names = self._rows.fieldnames
        return super().position() | ({} if names is None else {"fieldnames": list(names)})

    def go_to(self, position: dict[str, Any]) -> None:
        names = position.get("fieldnames")
        if names is not None:
            if type(names) is not list or any(isinstance(name, list | dict | set) for name in names):
                raise StateError(f"the columns of {self.path} are not names in the state: {names!r:.40}")
            self._rows.fieldnames = names
        super().go_to(position)


@functional_datapipe("parse_csv")
class CSVParser(_Parser):
    """Takes pairs (path, stream) of tables as text, and yields their rows: lists of text, tuples with ``as_tuple``.

    The first ``skip_lines`` of each file are left out. ``decode`` makes text of bytes by ``encoding`` and ``errors``.
    With ``return_path`` items are pairs (path, row). Other arguments are those of :func:`csv.reader`.

    With ``strict``, a row that has another number of fields than the first, a quote that is never closed, and bytes
    that are no text (unless ``errors`` says what becomes of them) are errors; line ends within quotes stay as they are
    in the file, and a byte order mark is no part of the first field. An empty line is an empty row. ``strict=False``
    reads as torchdata does: such bytes are left out, all rows are taken, an open quote holds the rest of the file.

    State: that of the input before the current file, and the position in the file. Resuming opens it again and goes
    there at once, if the stream can seek; else it reads the rows before again, which a
    :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError, TypeError and LookupError for wrong arguments; while iterating, TypeError for other items, and
    with a note of path and line, ``csv.Error`` for broken quotes and ValueError for rows of another length.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        as_tuple: bool = False,
        strict: bool = True,
        **fmtparams: Any,
    ) -> None:
        self.as_tuple = as_tuple
        decoding = check_decoding(encoding, errors, strict) if decode else None
        super().__init__(source_datapipe, skip_lines, decoding, return_path, strict, fmtparams)

    def reader(self, lines: Any) -> Any:
        rows = csv.reader(lines, strict=self.strict, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows

    def rows(self, content: Content) -> CsvRows:
        return _Rows(self, content)


@functional_datapipe("parse_csv_as_dict")
class CSVDictParser(_Parser):
    """Takes pairs (path, stream) of tables as text, and yields each row as a dict from column to text.

    The names of the columns are in the first row after ``skip_lines``, unless ``fieldnames`` gives them. Other
    arguments as with ``parse_csv``, and those of :class:`csv.DictReader`. With ``strict``, a row must have a field for
    each column, unless ``restkey`` (for longer ones) or ``restval`` (for shorter ones) is given, and no name may stand
    there twice.

    State: that of the input before the current file, the position in the file and the names of its columns. Resuming
    opens it again and goes there at once, if the stream can seek; else it reads the rows before again, which a
    :class:`~torchpipe.ReplayWarning` announces.

    Raises: as ``parse_csv``.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = False,
        strict: bool = True,
        **fmtparams: Any,
    ) -> None:
        decoding = check_decoding(encoding, errors, strict) if decode else None
        super().__init__(source_datapipe, skip_lines, decoding, return_path, strict, fmtparams)

    def reader(self, lines: Any) -> Any:
        defaults: dict[str, Any] = {"restkey": _REST, "restval": _MISSING} if self.strict else {}
        return csv.DictReader(lines, strict=self.strict, **(defaults | self.fmtparams))

    def rows(self, content: Content) -> CsvRows:
        return _NamedRows(self, content)
