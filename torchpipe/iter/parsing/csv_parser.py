"""``parse_csv`` and ``parse_csv_as_dict``: the rows of tables in open files."""

from __future__ import annotations

import csv
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.places.content import Content
from torchpipe.formats.places.streams import StreamWrapper
from torchpipe.formats.text import CsvRows, check_decoding
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["CSVDictParser", "CSVParser"]


class _Parser(StreamReader[Any]):
    binary = False

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        skip_lines: int,
        decoding: tuple[str, str] | None,
        return_path: bool,
        fmtparams: dict[str, Any],
    ) -> None:
        super().__init__(source_datapipe)
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.decoding = decoding
        self.return_path = return_path
        self.fmtparams = fmtparams
        self.reader([])  # a misspelt parameter is an error here

    def reader(self, lines: Any) -> Any:
        raise NotImplementedError

    def records(self, path: str, stream: StreamWrapper) -> CsvRows:
        return _Rows(self, Content(path, None, opened=stream))


class _Rows(CsvRows):
    """The rows of one file. Place: with columns, also their names."""

    def __init__(self, node: _Parser, content: Content) -> None:
        super().__init__(content, node.reader, node.decoding, node.skip_lines)
        self._return_path = node.return_path
        self._has_names = hasattr(self._rows, "fieldnames")  # which reads them, if they are in the file
        self._advance_row()

    def _row(self) -> Any:
        row = super()._row()
        return (self.path, row) if self._return_path and row is not None else row

    def place(self) -> dict[str, Any]:
        names = self._rows.fieldnames if self._has_names else None
        return super().place() | ({} if names is None else {"fieldnames": list(names)})

    def go_to(self, place: dict[str, Any]) -> None:
        names = place.get("fieldnames")
        if names is not None:
            if type(names) is not list or any(isinstance(name, list | dict | set) for name in names):
                raise StateError(f"the columns of {self.path} are not names in the state: {names!r:.40}")
            self._rows.fieldnames = names
        super().go_to(place)


@functional_datapipe("parse_csv")
class CSVParser(_Parser):
    """Takes pairs (path, stream) of tables as text, and yields their rows: lists of text, tuples with ``as_tuple``.

    The first ``skip_lines`` of each file are left out. ``decode`` makes text of bytes by ``encoding`` and ``errors``.
    With ``return_path`` items are pairs (path, row). Other arguments are those of :func:`csv.reader`.

    State: that of the input before the current file, and the place in the file. Resuming opens it again and goes there
    at once, if the stream can seek; else it reads the rows before again, which a :class:`~torchpipe.ReplayWarning`
    announces.

    Raises: ValueError, TypeError and LookupError for wrong arguments; while iterating, TypeError for other
    items, and ``csv.Error`` with a note of the path.
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        self.as_tuple = as_tuple
        decoding = check_decoding(encoding, errors) if decode else None
        super().__init__(source_datapipe, skip_lines, decoding, return_path, fmtparams)

    def reader(self, lines: Any) -> Any:
        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


@functional_datapipe("parse_csv_as_dict")
class CSVDictParser(_Parser):
    """Takes pairs (path, stream) of tables as text, and yields each row as a dict from column to text.

    The names of the columns are in the first row after ``skip_lines``, unless ``fieldnames`` gives them. Other
    arguments as with ``parse_csv``, and those of :class:`csv.DictReader`.

    State: that of the input before the current file, the place in the file and the names of its columns. Resuming opens
    it again and goes there at once, if the stream can seek; else it reads the rows before again, which a
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
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        decoding = check_decoding(encoding, errors) if decode else None
        super().__init__(source_datapipe, skip_lines, decoding, return_path, fmtparams)

    def reader(self, lines: Any) -> Any:
        return csv.DictReader(lines, **self.fmtparams)
