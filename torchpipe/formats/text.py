"""Text files record by record: lines, JSON Lines (jsonlines.org), CSV (RFC 4180). Runs wherever its reader runs.

Lines end with a line feed, with or without a carriage return before it. Encodings are those in which a line feed is the
byte 10 and nothing else is: UTF-8 and those of one byte, not UTF-16.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.formats.places.content import Content
from torchpipe.formats.records import Records

__all__ = ["CsvRows", "JsonLines", "Lines", "TextLines", "check_encoding"]

T = TypeVar("T")

_BYTES = bytes(range(128))


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


class Lines(Records[T]):
    """Base: counts lines and bytes. ``place`` is the number of the next line and where it begins."""

    def __init__(self, content: Content, encoding: str = "utf-8") -> None:
        self.path = content.path
        self.size = content.size
        self.encoding = encoding
        self._content = content
        self._offset = 0
        self._line = 0  # lines read

    def _read(self) -> bytes:
        """The next line, its end included; empty at the end of the file. The place stays."""
        return self._content.stream.readline()

    def _pass(self, line: bytes) -> None:
        self._offset += len(line)
        self._line += 1

    def _decoded(self, line: bytes) -> str:
        if not self._line and line.startswith(codecs.BOM_UTF8):
            line = line[3:]
        return line.decode(self.encoding)

    def skip(self, count: int) -> int:
        for done in range(count):
            line = self._read()
            if not line:
                return done
            self._pass(line)
        return count

    def place(self) -> dict[str, Any]:
        return {"at": self._content.mark(self._offset), "line": self._line}

    def go_to(self, place: dict[str, Any]) -> None:
        line = place["line"]
        if type(line) is not int or line < 0:
            raise StateError(f"the state names no line of {self.path}, but {line!r:.40}")
        self._content.go_to(place["at"])
        self._offset, self._line = place["at"][0], line

    def behind(self) -> tuple[int, int]:
        size = self._content.behind(self._offset)
        return size, round(self._line * size / max(1, self._offset))

    def where(self) -> str:
        return f"line {self._line + 1} (byte {self._offset})"

    def close(self) -> None:
        self._content.close()


class TextLines(Lines[str]):
    """Lines without their ends."""

    def __next__(self) -> str:
        line = self._read()
        if not line:
            raise StopIteration
        text = self._decoded(line)
        self._pass(line)
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
    """Rows as lists of text or, with a header, as dicts; a quoted field may go over several lines.

    ``columns`` are those to hand out. Rows of another length than the first are an error, empty lines count as none.
    """

    def __init__(
        self, content: Content, encoding: str, header: bool, columns: Sequence[str] | None, form: dict[str, Any]
    ) -> None:
        super().__init__(content, encoding)
        self._taken: list[bytes] = []  # the lines of the row that is being made
        self._rows = csv.reader(self._lines(), **form)
        self._width = 0
        self.names: list[str] | None = None
        self._chosen: list[tuple[str, int]] = []
        if header:
            self._read_header(columns)

    def _lines(self) -> Iterator[str]:
        while line := self._read():
            self._taken.append(line)
            yield self._decoded(line)

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
        self._advance()

    def _advance(self) -> None:
        for line in self._taken:
            self._pass(line)
        self._taken.clear()

    def _row(self) -> list[str] | None:
        for row in self._rows:
            if row:
                return row
            self._advance()
        return None

    def __next__(self) -> Any:
        row = self._row()
        if row is None:
            raise StopIteration
        self._width = self._width or len(row)
        if len(row) != self._width:
            raise ValueError(f"a row of {len(row)} fields, where there are {self._width} columns: {row!r:.100}")
        self._advance()
        return {name: row[index] for name, index in self._chosen} if self.names else row

    def skip(self, count: int) -> int:
        for done in range(count):
            if self._row() is None:
                return done
            self._advance()
        return count

    def place(self) -> dict[str, Any]:
        return super().place() | {"width": self._width}

    def go_to(self, place: dict[str, Any]) -> None:
        width = place["width"]
        if type(width) is not int or width < 0 or (self.names is not None and width != self._width):
            raise StateError(f"{self.path} had {width!r:.40} columns when the state was saved, not {self._width}")
        super().go_to(place)
        self._width = width
