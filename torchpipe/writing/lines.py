"""JSON Lines, compressed or not: a value on each line."""

from __future__ import annotations

from typing import Any

from torchpipe.compat.packages import needs
from torchpipe.formats.encoding import json_text
from torchpipe.writing.files import PartFile
from torchpipe.writing.kinds import Kind, Writing

__all__ = ["Lines"]

_FRAME_BYTES = 1 << 22  # of text in a frame, from any of which a reader goes on


class Lines(Kind):
    """``compressed``: zstandard frames of 4 MiB of text each. Raises: ImportError where zstandard is missing."""

    def __init__(self, *, compressed: bool) -> None:
        self.encode = json_text
        self.arguments = {}
        self._compress: Any = None
        if compressed:
            zstandard = needs("zstandard", "writing .jsonl.zst (.jsonl needs nothing)")
            self._compress = zstandard.ZstdCompressor(write_checksum=True).compress

    def open(self, files: list[PartFile]) -> Writing:
        return _LinesWriting(files[0], self._compress)


class _LinesWriting(Writing):
    def __init__(self, file: PartFile, compress: Any) -> None:
        self._file = file
        self._compress = compress
        self._held: list[bytes] = []
        self._held_bytes = 0

    def add(self, encoded: Any) -> int:
        self._held += (encoded, b"\n")
        self._held_bytes += len(encoded) + 1
        if self._held_bytes >= _FRAME_BYTES:
            self._write()
        return len(encoded) + 1

    def _write(self) -> None:
        data = b"".join(self._held)
        self._held, self._held_bytes = [], 0
        self._file.write(data if self._compress is None else self._compress(data))

    def close(self) -> None:
        if self._held:
            self._write()
