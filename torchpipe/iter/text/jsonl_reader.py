"""``read_jsonl``: the values in files of JSON Lines, from any place on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchpipe.formats.places.content import Content, check_compression
from torchpipe.formats.text import JsonLines, check_encoding, decoder
from torchpipe.iter._shared.paths import Paths
from torchpipe.iter._shared.reading import FileReader, path_of
from torchpipe.node.datapipe import functional_datapipe

__all__ = ["JsonlReader"]


@functional_datapipe("read_jsonl")
class JsonlReader(FileReader[Any]):
    """Yields the JSON value of each line of files of JSON Lines (jsonlines.org); blank lines count as none.

    ``datapipe`` yields paths; or give paths themselves, in which braces and globs may stand. URLs are opened by
    fsspec with ``storage_options``. ``compression`` is ``"gzip"``, ``"bz2"``, ``"xz"``, ``"zstd"`` or None;
    ``"infer"`` goes by the file's ending.

    State: the place in the file in bytes, at which resuming goes on at once; in a compressed file as
    :class:`~torchpipe.iter.TextLineReader`. A sharding point straight after it passes over lines without parsing them.

    Raises: while iterating, ValueError for a line that is no JSON, with the path, line and byte; else as
    :class:`~torchpipe.iter.TextLineReader`.
    """

    def __init__(
        self,
        datapipe: Paths,
        encoding: str = "utf-8",
        *,
        compression: str | None = "infer",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("read_jsonl", datapipe, storage_options)
        self.encoding = check_encoding(encoding)
        self.compression = check_compression(compression)

    def records(self, item: Any) -> JsonLines:
        path = path_of("read_jsonl", item)
        return JsonLines(Content(path, self.compression, self.storage_options), decoder(self.encoding))
