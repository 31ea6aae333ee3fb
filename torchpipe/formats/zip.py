"""The files in an archive with a table of them (zip, rar), by their number there.

The standard library's ``zipfile`` reads zip archives, and compares their checksums.
"""

from __future__ import annotations

import fnmatch
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.records import Records
from torchpipe.formats.storage.content import open_stored
from torchpipe.formats.storage.streams import StreamWrapper, close_stream_after_parts, stamp_of, wrap_stream

__all__ = ["ArchiveStreams", "ZipFiles"]


class _TableOfFiles(Records[tuple[str, Any]]):
    """Base: the files that ``archive.infolist()`` names, without folders. Position: the number."""

    def __init__(self, path: str, archive: Any, stamp: list[int | str | None] | None, mask: str = "") -> None:
        self.path = path
        self.stamp = stamp
        self._archive = archive
        self._infos: Sequence[Any] = [
            info
            for info in archive.infolist()
            if not info.is_dir() and (not mask or fnmatch.fnmatchcase(info.filename, mask))
        ]
        self._next = 0

    def _made(self, info: Any) -> tuple[str, Any]:
        raise NotImplementedError

    def __next__(self) -> tuple[str, Any]:
        if self._next >= len(self._infos):
            raise StopIteration
        made = self._made(self._infos[self._next])
        self._next += 1
        return made

    def skip(self, count: int) -> int:
        passed = min(count, len(self._infos) - self._next)
        self._next += passed
        return passed

    def position(self) -> dict[str, Any]:
        return {"file": self._next}

    def go_to(self, position: dict[str, Any]) -> None:
        number = position["file"]
        if type(number) is not int or not 0 <= number <= len(self._infos):
            raise StateError(f"{self.path} has {len(self._infos)} files, and the state names number {number!r:.40}")
        self._next = number

    def where(self) -> str:
        return f"file {self._next}"


class ArchiveStreams(_TableOfFiles):
    """(archive/name, open stream) of each file. ``stream``, which the open ``archive`` reads, is closed after these."""

    def __init__(self, path: str, stream: StreamWrapper, archive: Any) -> None:
        super().__init__(path, archive, stamp_of(stream))
        self._stream = stream

    def _made(self, info: Any) -> tuple[str, Any]:
        name = os.path.normpath(os.path.join(self.path, info.filename))
        return name, wrap_stream(self._archive.open(info), parent=self._stream, name=name)

    def close(self) -> None:
        close_stream_after_parts(self._stream)


class ZipFiles(_TableOfFiles):
    """(archive/name, content) of the files in a zip archive whose names fit ``mask``.

    Raises: ValueError, with the path, for another file, and for a part that ``zipfile`` cannot read.
    """

    def __init__(self, path: str, mask: str, storage_options: Mapping[str, Any] | None) -> None:
        self._file = open_stored(path, storage_options)
        try:
            archive = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            self._file.close()
            raise ValueError(f"{path} is no zip archive, or is cut off: {error}") from error
        super().__init__(path, archive, stamp_of(self._file), mask)

    def _made(self, info: Any) -> tuple[str, Any]:
        try:
            return os.path.join(self.path, info.filename), self._archive.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
            # RuntimeError: it is encrypted; OSError: bz2's
            raise ValueError(f"{self.path} is damaged at {info.filename!r}, or it cannot be read: {error}") from error

    def close(self) -> None:
        self._archive.close()
        self._file.close()
