"""Text files record by record: lines, JSON Lines (jsonlines.org), CSV (RFC 4180).

Lines end with a line feed, with or without a carriage return before it. Encodings are those in which a line feed is the
byte 10 and nothing else is: UTF-8 and those of one byte, not UTF-16.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.formats.records import ContentRecords
from torchpipe.formats.storage.content import Content

__all__ = ["CsvRows", "CsvTable", "JsonLines", "Lines", "TextLines", "check_decoding", "check_encoding"]

T = TypeVar("T")

_BYTES = bytes(range(128))
_FIELD_CHARACTERS = 1 << 27  # of CSV, at most; a quote that is never closed ends there


def check_encoding(encoding: object) -> str:
    """``encoding``. Raises: TypeError, ValueError unless it is one in which lines can be told apart by their bytes."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be the name of one, got {encoding!r} of type {type(encoding).__name__}")
    try:
        plain = _BYTES.decode(encoding) == _BYTES.decode("ascii")
    except LookupError:
        raise ValueError(f"encoding={encoding!r} is unknown to Python: did you mean 'utf-8'?") from None
    except UnicodeDecodeError:
        plain = False
    if not plain:
        raise ValueError(
            f"lines in encoding={encoding!r} cannot be told apart by their bytes: convert the files to UTF-8"
        )
    return encoding


def check_decoding(encoding: str, errors: str | None, strict: bool) -> tuple[str, str]:
    """Both; without ``errors``, bytes that are no text raise if it is ``strict``, and are left out else.

    Raises: LookupError for an encoding, or a way to treat errors, that Python does not have.
    """
    errors = ("strict" if strict else "ignore") if errors is None else errors
    for name, look_up, value in (("encoding", codecs.lookup, encoding), ("errors", codecs.lookup_error, errors)):
        try:
            look_up(value)
        except (LookupError, TypeError, ValueError) as error:
            what = "an encoding" if name == "encoding" else "a way to treat errors, such as 'strict' or 'ignore',"
            raise LookupError(f"{name} must be {what} that Python has, got {value!r}: {error}") from None
    return encoding, errors


class Lines(ContentRecords[T]):
    """The lines as they stand in the file, with their ends. Base of what is made of lines.

    ``decoding`` (encoding, errors) makes text of the bytes of a line; a stream of text does without. The first ``skip``
    lines are left out. A byte order mark is no part of the first line, unless ``keeps_bom``. Of a piece of a file,
    ``span`` (start, stop), the lines are those that start in it; lines are counted from there on.
    """

    unit = "line"
    first_number = 1

    def __init__(
        self,
        content: Content,
        decoding: tuple[str, str] | None = None,
        skip: int = 0,
        *,
        keeps_bom: bool = False,
        span: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(content, span)
        self._encoding, self._errors = decoding or ("", "")
        self._decodes = decoding is not None and not content.is_text
        self._bom: Any = None if keeps_bom else "\ufeff" if content.is_text else codecs.BOM_UTF8
        if span is not None and self._start:
            self._bom = None
            self._to_first_line(*span)
        for _ in range(skip):
            self._pass(self._read())

    def _to_first_line(self, start: int, stop: int) -> None:
        """To the first line that starts in the piece: a line starts behind each end of one. To its end without any."""
        self.content.go_back(start - 1)
        rest = self.content.stream.readline(stop - start)
        self.offset = start - 1 + len(rest) if rest.endswith(b"\n") else stop

    def _read(self) -> Any:
        """The next line, its end included; empty at the end. The position stays."""
        return self.content.stream.readline() if self._stop is None or self.offset < self._stop else b""

    def _pass(self, line: Any) -> None:
        self.offset += len(line)
        self._number += 1

    def _decoded(self, line: Any) -> Any:
        if not self._number and self._bom and self._is_first() and (self._decodes or self.content.is_text):
            line = line.removeprefix(self._bom)
        return line.decode(self._encoding, self._errors) if self._decodes else line

    def _is_first(self) -> bool:
        """True while the first line of the first record is being decoded."""
        return True

    def _made(self, line: Any) -> Any:
        """The record of a line."""
        return self._decoded(line)

    def __next__(self) -> T:
        line = self.content.stream.readline() if self._stop is None or self.offset < self._stop else b""
        if not line:
            raise StopIteration
        made: T = self._made(line)
        self.offset += len(line)
        self._number += 1
        return made

    def skip(self, count: int) -> int:
        for done in range(count):
            line = self._read()
            if not line:
                return done
            self._pass(line)
        return count


class TextLines(Lines[str]):
    """Lines without their ends."""

    def _made(self, line: Any) -> str:
        text: str = self._decoded(line)
        return text.removesuffix("\n").removesuffix("\r")


class JsonLines(Lines[Any]):
    """A JSON value in each line; lines of white space count as none."""

    def __next__(self) -> Any:
        while line := self._read():
            if line.strip():
                value = self._value(line)
                self._pass(line)
                return value
            self._pass(line)
        raise StopIteration

    def _value(self, line: bytes) -> Any:
        text = self._decoded(line)
        try:
            return json.loads(text.rstrip())
        except json.JSONDecodeError as error:
            shown = text.strip()
            raise ValueError(
                f"no JSON: {error.msg} at column {error.colno} of {shown[:80]!r}{'...' * (len(shown) > 80)}. "
                "A file of JSON Lines has one whole value in each line"
            ) from error

    def skip(self, count: int) -> int:
        done = 0
        while done < count and (line := self._read()):
            self._pass(line)
            done += bool(line.strip())
        return done


class CsvRows(Lines[Any]):
    """The rows that ``reader``, such as ``csv.reader``, makes of lines; a quoted field may go over several lines.

    Position: with the number of columns, that of the first row; 0 as long as none is known.
    """

    way_out = ""  # for a row of another length, as messages have it

    def __init__(
        self,
        content: Content,
        reader: Callable[[Iterator[str]], Iterator[Any]],
        decoding: tuple[str, str] | None = None,
        skip: int = 0,
        *,
        keeps_bom: bool = False,
    ) -> None:
        self._taken: list[Any] = []  # the lines of the row that is being made
        csv.field_size_limit(max(csv.field_size_limit(), _FIELD_CHARACTERS))  # of this process, whoever reads CSV
        super().__init__(content, decoding, skip, keeps_bom=keeps_bom)
        self._width = 0
        self._rows: Any = reader(self._texts())

    def _texts(self) -> Iterator[str]:
        while line := self._read():
            self._taken.append(line)
            yield self._decoded(line)

    def _is_first(self) -> bool:
        return len(self._taken) < 2

    def _advance_row(self) -> None:
        for line in self._taken:
            self._pass(line)
        self._taken.clear()
        self.read_whole = False

    def _row(self) -> Any:
        """The next row; None at the end. The position stays. The first row tells the number of columns."""
        return next(self._rows, None)

    def _record(self, row: Any) -> Any:
        """The item that is handed out of a row. Raises: ValueError for a row that is wrong."""
        return row

    def _check_width(self, row: Sequence[Any]) -> None:
        if len(row) != self._width:
            raise ValueError(
                f"a row of {len(row)} fields, where there are {self._width} columns: {row!r:.100}{self.way_out}"
            )

    def __next__(self) -> Any:
        row = self._row()
        if row is None:
            raise StopIteration
        self.read_whole = True
        record = self._record(row)
        self._advance_row()
        return record

    def pass_read(self) -> None:
        self._advance_row()
        self.failed = False

    def leave_out(self) -> bool:
        errors, self._errors = self._errors, "replace"  # bytes that are no text are no quotes either
        try:
            return super().leave_out()
        finally:
            self._errors = errors

    def skip(self, count: int) -> int:
        for done in range(count):
            if self._row() is None:
                return done
            self._advance_row()
        return count

    def position(self) -> dict[str, Any]:
        return super().position() | {"width": self._width}

    def go_to(self, position: dict[str, Any]) -> None:
        width = position["width"]
        if type(width) is not int or width < 0 or (self._width and width != self._width):
            raise StateError(f"{self.path} had {width!r:.40} columns when the state was saved, not {self._width}")
        super().go_to(position)
        self._width = width


class CsvTable(CsvRows):
    """Rows as lists of text or, with a header, as dicts.

    ``columns`` are those to hand out. Rows of another length than the first are an error, empty lines count as none.
    """

    def __init__(
        self, content: Content, encoding: str, header: bool, columns: Sequence[str] | None, form: dict[str, Any]
    ) -> None:
        super().__init__(content, lambda lines: csv.reader(lines, **form), (encoding, "strict"))
        self.names: list[str] | None = None
        self._chosen: list[tuple[str, int]] = []
        if header:
            self._read_header(columns)

    def _read_header(self, columns: Sequence[str] | None) -> None:
        names = next(self._rows, None)
        if not names:
            raise ValueError(f"{self.path} is empty: it should begin with a line of column names (or say header=False)")
        if len(set(names)) < len(names):
            raise ValueError(f"{self.path} names a column twice: {names}")
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise ValueError(f"{self.path} has no column {missing[0]!r}: its columns are {', '.join(names)}")
        self.names, self._width = names, len(names)
        self._chosen = [(name, names.index(name)) for name in columns or names]
        self._advance_row()

    def _row(self) -> list[str] | None:
        for row in self._rows:
            if row:
                self._width = self._width or len(row)
                return row  # type: ignore[no-any-return]
            self._advance_row()
        return None

    def _record(self, row: list[str]) -> Any:
        self._check_width(row)
        return {name: row[index] for name, index in self._chosen} if self.names else row
