"""``read_lines`` and ``read_jsonl``: the lines of text files and the JSON values in them, from any position on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torchpipe.formats.text import JsonLines, TextLines, check_encoding
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import ContentReader
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["JsonlReader", "TextLineReader"]

T = TypeVar("T")


class _LineReader(ContentReader[T]):
    unit = "lines"

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
