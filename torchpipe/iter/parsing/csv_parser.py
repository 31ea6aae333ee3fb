"""``parse_csv`` and ``parse_csv_as_dict``: the rows of tables in open files. Runs wherever its shard runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

from torchpipe.errors import StateError
from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.iter._shared.places import PlacedLines, lines_of
from torchpipe.iter._shared.text import Decoding
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, refusing_misfits
from torchpipe.node.validate import check_count, check_input

__all__ = ["CSVDictParser", "CSVParser"]


class _Parser(IterDataPipe[Any]):
    """What both have in common."""

    thins = True

    def _take(
        self,
        form: str,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        skip_lines: int,
        decoding: Decoding | None,
        return_path: bool,
        fmtparams: dict[str, Any],
    ) -> None:
        check_input(form, source_datapipe)
        self.form = form
        self.source_datapipe = source_datapipe
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.decoding = decoding
        self.return_path = return_path
        self.fmtparams = fmtparams
        self.reader([])  # a misspelt parameter is an error here

    def reader(self, lines: Any) -> Any:
        raise NotImplementedError

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _RowIterator(self, context, self.source_datapipe)


@functional_datapipe("parse_csv")
class CSVParser(_Parser):
    """Takes pairs (path, stream) of tables as text, and yields their rows: lists of text, tuples with ``as_tuple``.

    The first ``skip_lines`` of each file are left out. ``decode`` makes text of bytes by ``encoding`` and ``errors``.
    With ``return_path`` items are pairs (path, row). Other arguments are those of :func:`csv.reader`.

    State: that of the input before the current file, and the place in the file. Resuming opens it again and goes there
    at once, if the stream can seek; else it reads the rows before again, which a :class:`~torchpipe.ReplayWarning`
    announces.

    Raises: ValueError, TypeError and LookupError for wrong arguments; while iterating, TypeError for items that are no
    pairs, and ``csv.Error`` with a note of the path.
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
        decoding = Decoding.checked(encoding, errors) if decode else None
        self._take("parse_csv", source_datapipe, skip_lines, decoding, return_path, fmtparams)
        self.as_tuple = as_tuple

    def reader(self, lines: Any) -> Any:
        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if getattr(self, "as_tuple", False) else rows


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
        decoding = Decoding.checked(encoding, errors) if decode else None
        self._take("parse_csv_as_dict", source_datapipe, skip_lines, decoding, return_path, fmtparams)

    def reader(self, lines: Any) -> Any:
        return csv.DictReader(lines, **self.fmtparams)


class _RowIterator(ExpandingIterator[Any]):
    node: _Parser

    def expand(self, item: Any) -> Iterator[Any]:
        path, stream = path_and_stream(self.node.form, item, binary=False)
        lines = lines_of(path, stream, self.node.skip_lines)
        return (_PlacedRows if isinstance(lines, PlacedLines) else _Rows)(self.node, lines)


class _Rows(Iterator[Any]):
    """The rows of one file: ``csv`` takes the lines that it needs, and no more."""

    def __init__(self, node: _Parser, lines: Any) -> None:
        self._node = node
        self._lines = lines
        self._rows = node.reader(self._texts())

    def _texts(self) -> Iterator[Any]:
        decoding, path = self._node.decoding, self._lines.path
        return self._lines if decoding is None else (decoding.text(line, path) for line in self._lines)

    def __next__(self) -> Any:
        with naming_path(self._lines.path):
            try:
                row = next(self._rows)
            except StopIteration:
                row = None
        if row is None:
            raise StopIteration
        return (self._lines.path, row) if self._node.return_path else row


class _PlacedRows(_Rows):
    """The same of a stream that can seek. State: the place in it; with columns, their names."""

    _lines: PlacedLines

    def state_dict(self) -> dict[str, Any]:
        names = getattr(self._rows, "fieldnames", None)
        return self._lines.state_dict() | ({} if names is None else {"fieldnames": list(names)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        names = state.get("fieldnames")
        if names is not None:
            if not isinstance(names, list):
                raise StateError(f"the columns of {self._lines.path} are not a list in the state: {names!r:.40}")
            with refusing_misfits(f"the columns of {self._lines.path}"):
                set(names)  # rows have them as keys
            self._rows.fieldnames = names
        self._lines.load_state_dict(state)
