"""``read_lines``: the lines of text files, from any place on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.places.content import Content, check_compression
from torchpipe.formats.text import TextLines, check_encoding, decoder
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader, path_of
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["TextLineReader"]


@functional_datapipe("read_lines")
class TextLineReader(FileReader[str]):
    """Yields the lines of text files, without their ends (``\\n`` or ``\\r\\n``), one file after the other.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by
    fsspec with ``storage_options``. ``compression`` is ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"`` or None;
    ``"infer"`` goes by the file's ending. A byte order mark is left out.

    State: the place in the file in bytes, at which resuming goes on at once. In a compressed file it begins with the
    member (the frame) around the place, and announces what is decompressed again by a
    :class:`~torchpipe.ReplayWarning` from 64 MiB on. A sharding point straight after it passes over lines without
    decoding them.

    Raises: ValueError for an encoding in which lines cannot be told apart by their bytes (UTF-16); while iterating,
    what the encoding raises, EOFError for compressed data that are cut off and ValueError for damaged ones, all with
    the path, line and byte; StateError where a file has changed since a state was saved.
    """

    def __init__(
        self,
        datapipe: Paths,
        encoding: str = "utf-8",
        *,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("read_lines", datapipe, storage_options)
        self.encoding = check_encoding(encoding)
        self.compression = check_compression(compression)

    def records(self, item: Any) -> TextLines:
        path = path_of("read_lines", item)
        return TextLines(Content(path, self.compression, self.storage_options), decoder(self.encoding))
