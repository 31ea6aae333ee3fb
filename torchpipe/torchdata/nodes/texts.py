"""Text in open files.

- ``parse_csv`` and ``parse_csv_as_dict``: the rows of tables in open files.
- ``parse_json_files``: the values in open JSON files.
- ``readlines``: the lines of open files.
- ``lines_to_paragraphs``: lines up to the next empty one, together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper, close_stream, keep_newlines
from torchpipe.formats.text import CsvRows, Lines, check_decoding
from torchpipe.iter._shared.bases import ItemIterator, Itemwise, OneInput
from torchpipe.iter._shared.paths import naming_path, pair_of, path_and_stream
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_columns, check_count

__all__ = ["CSVDictParser", "CSVParser", "JsonParser", "LineReader", "ParagraphAggregator"]

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


@functional_datapipe("parse_json_files")
class JsonParser(Itemwise[tuple[str, Any]]):
    """Takes pairs (path, stream) of JSON files, and yields pairs (path, value). Closes the stream.

    Other arguments are those of :func:`json.loads`.

    State: none of its own. Raises: while iterating, TypeError for other items, and ``json.JSONDecodeError``
    with a note of the path.
    """

    def __init__(self, source_datapipe: IterDataPipe[tuple[str, Any]], **kwargs: Any) -> None:
        super().__init__(source_datapipe)
        json.loads("0", **kwargs)  # a misspelt argument is an error here
        self.kwargs = kwargs

    def change(self, item: Any) -> tuple[str, Any]:
        path, stream = path_and_stream("parse_json_files", item, binary=False)
        with naming_path(path):
            data = json.loads(stream.read(), **self.kwargs)
        close_stream(stream)
        return path, data


@functional_datapipe("readlines")
class LineReader(StreamReader[Any]):
    """Takes pairs (path, stream), and yields pairs (path, line), or lines alone with ``return_path=False``.

    The first ``skip_lines`` of each file are left out. ``strip_newline`` takes newline characters from both ends of a
    line. Streams of bytes yield bytes, unless ``decode`` makes text of them by ``encoding`` and ``errors``. A stream is
    closed at its end. With ``strict``, bytes that are no text are an error, unless ``errors`` says what becomes of
    them, and a byte order mark is no part of a text; ``strict=False`` leaves such bytes out, and keeps the mark, as
    torchdata does.

    State: that of the input before the current file, and the position in the file. Resuming opens it again and goes
    there at once, if the stream can seek (of compressed ones, the bytes before are decompressed again); else it reads
    the lines before again, which a :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a negative ``skip_lines``; LookupError for an unknown encoding; while iterating, TypeError
    for items that are no pairs, and what the stream raises, with a note of the path; StateError where the file has
    changed since a state was saved, as far as its size and its end tell, if the stream is one of a file.
    """

    binary = False

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = True,
        strict: bool = True,
    ) -> None:
        super().__init__(source_datapipe)
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.strip_newline = strip_newline
        self.decoding = check_decoding(encoding, errors, strict) if decode else None
        self.strict = strict
        self.return_path = return_path

    def records(self, path: str, stream: StreamWrapper) -> _Lines:
        return _Lines(self, Content(path, None, opened=stream))


class _Lines(Lines[Any]):
    def __init__(self, node: LineReader, content: Content) -> None:
        super().__init__(content, node.decoding, node.skip_lines, keeps_bom=not node.strict)
        self._strip = node.strip_newline
        self._return_path = node.return_path

    def _made(self, line: Any) -> Any:
        if self._strip:
            line = line.strip("\r\n" if isinstance(line, str) else b"\r\n")
        line = self._decoded(line)
        return (self.path, line) if self._return_path else line


def _joined(lines: list[str]) -> str:
    return "\n".join(lines)


class _ParagraphIterator(ItemIterator[tuple[str, Any]]):
    saved = ("path", "lines")

    def __init__(self, node: ParagraphAggregator, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.joiner = self.with_retries(node.joiner)
        self.path: Any = None  # of the lines
        self.lines: list[Any] = []

    def run(self) -> Iterator[tuple[str, Any]]:
        for item in self.source.items():
            path, line = pair_of("lines_to_paragraphs", item, "(path, line), as from readlines()")
            before, lines = self.path, self.lines
            if line and (path == before or not lines):
                self.path = path
                lines.append(line)
                continue
            self.path, self.lines = path, [line] if line else []
            if lines:
                yield before, self.joiner(lines)
        if self.lines:
            lines, self.lines = self.lines, []
            yield self.path, self.joiner(lines)


@functional_datapipe("lines_to_paragraphs")
class ParagraphAggregator(OneInput[tuple[str, Any]]):
    """Takes pairs (path, line), and yields pairs (path, paragraph): the lines up to an empty one, or to the next path.

    ``joiner`` makes a paragraph of a list of lines, by default one text.

    State: the lines of the paragraph that has begun. Raises: TypeError if ``joiner`` is no function or, while
    iterating, for items that are no pairs.
    """

    iterator = _ParagraphIterator

    def __init__(
        self, source_datapipe: IterDataPipe[tuple[str, Any]], joiner: Callable[[list[Any]], Any] = _joined
    ) -> None:
        super().__init__(source_datapipe)
        check_columns("joiner", joiner, None)
        self.joiner = joiner
