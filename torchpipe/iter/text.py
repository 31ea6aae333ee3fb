"""Text files.

- ``read_csv``: the rows of CSV files, from any position on.
- ``read_lines`` and ``read_jsonl``: the lines of text files and the JSON values in them, from any position on.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torchpipe.formats.text import CsvTable, JsonLines, TextLines, check_encoding
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import ContentReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["CsvReader", "JsonlReader", "TextLineReader"]


@functional_datapipe("read_csv")
class CsvReader(ContentReader[Any]):
    """Yields the rows of CSV files (RFC 4180): dicts from column name to text, or lists without a ``header``.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by fsspec
    with ``storage_options``. With ``header`` the first line of each file names the columns; ``columns`` are handed out,
    all by default. A quoted field may go over several lines; empty lines count as none. ``fmtparams`` are those of
    :func:`csv.reader` (``delimiter="\\t"``), with ``strict=True`` for a default, so that a quote that is never closed
    is an error.

    State: the position in the file in bytes, at which resuming goes on at once; in a compressed file as
    :class:`~torchpipe.iter.TextLineReader`.

    Raises: TypeError for unknown ``fmtparams``, ValueError for ``columns`` without a header; while iterating,
    ValueError for a missing column, a file without a header and rows of another length, :class:`csv.Error` for broken
    quotes, with the path, line and byte; else as :class:`~torchpipe.iter.TextLineReader`.
    """

    def __init__(
        self,
        datapipe: Paths,
        columns: Sequence[str] | None = None,
        *,
        header: bool = True,
        encoding: str = "utf-8",
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
        **fmtparams: Any,
    ) -> None:
        super().__init__(datapipe, compression, storage_options)
        if columns is not None and (isinstance(columns, str) or not columns):
            raise ValueError(f"columns must be a list of names, at least one, got {columns!r}")
        if columns is not None and not header:
            raise ValueError(f"columns={list(columns)!r} need a header that names them, and header is False")
        self.columns = None if columns is None else tuple(columns)
        self.has_header = header
        self.encoding = check_encoding(encoding)
        self.fmtparams = {"strict": True} | fmtparams
        csv.reader([], **self.fmtparams)

    def records(self, item: Any) -> CsvTable:
        content = self.content(item)
        try:
            return CsvTable(content, self.encoding, self.has_header, self.columns, self.fmtparams)
        except BaseException:
            content.close()
            raise


T = TypeVar("T")


class _LineReader(ContentReader[T]):
    piece_unit = "lines"

    def __init__(
        self,
        datapipe: Paths,
        encoding: str = "utf-8",
        *,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(datapipe, compression, storage_options)
        self.encoding = check_encoding(encoding)


@functional_datapipe("read_lines")
class TextLineReader(_LineReader[str]):
    """Yields the lines of text files, without their ends (``\\n`` or ``\\r\\n``), one file after the other.

    ``datapipe`` yields paths, or pieces of files (``shard_pieces``); or give paths themselves, in which braces and
    globs may stand. URLs are opened by fsspec with ``storage_options``. ``compression`` is ``"gzip"``, ``"bz2"``,
    ``"xz"``, ``"zstd"`` or None; ``"infer"`` goes by the file's ending. A byte order mark is left out.

    State: the position in the file in bytes, at which resuming goes on at once. In a compressed file it begins with the
    member (the frame) around the position, and announces what is decompressed again by a
    :class:`~torchpipe.ReplayWarning` from 64 MiB on. A sharding point straight after it passes over lines without
    decoding them.

    Raises: ValueError for an encoding in which lines cannot be told apart by their bytes (UTF-16); while iterating,
    what the encoding raises, EOFError for compressed data that are cut off and ValueError for damaged ones, all with
    the path, line and byte; StateError where a file has changed since a state was saved.
    """

    def records(self, item: Any) -> TextLines:
        return TextLines(self.content(item), (self.encoding, "strict"), span=self.piece_of(item)[1])


@functional_datapipe("read_jsonl")
class JsonlReader(_LineReader[Any]):
    """Yields the JSON value of each line of files of JSON Lines (jsonlines.org); blank lines count as none.

    ``datapipe`` yields paths, or pieces of files (``shard_pieces``); or give paths themselves, in which braces and
    globs may stand. URLs are opened by fsspec with ``storage_options``. ``compression`` is ``"gzip"``, ``"bz2"``,
    ``"xz"``, ``"zstd"`` or None; ``"infer"`` goes by the file's ending.

    State: the position in the file in bytes, at which resuming goes on at once; in a compressed file as
    :class:`~torchpipe.iter.TextLineReader`. A sharding point straight after it passes over lines without parsing them.

    Raises: while iterating, ValueError for a line that is no JSON, with the path, line and byte; else as
    :class:`~torchpipe.iter.TextLineReader`.
    """

    def records(self, item: Any) -> JsonLines:
        return JsonLines(self.content(item), (self.encoding, "strict"), span=self.piece_of(item)[1])
