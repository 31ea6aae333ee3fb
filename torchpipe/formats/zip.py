"""The files in a zip archive, by their number in its table. Runs wherever its reader runs.

The standard library's ``zipfile`` reads them, and compares their checksums.
"""

from __future__ import annotations

import fnmatch
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.places.content import open_stored
from torchpipe.formats.records import Records

__all__ = ["ZipFiles"]


class ZipFiles(Records[tuple[str, bytes]]):
    """(archive/name, content) of the files whose names fit ``mask``, in the order of the table. Place: the number
    there.

    Raises: ValueError for what is no zip archive, with its path; for one file, what ``zipfile`` raises becomes one,
    too.
    """

    def __init__(self, path: str, mask: str, storage_options: Mapping[str, Any] | None) -> None:
        self.path = path
        self._file = open_stored(path, storage_options)
        self.size = self._file.seek(0, os.SEEK_END)
        try:
            self._archive = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            self._file.close()
            raise ValueError(f"{path} is no zip archive, or is cut off: {error}") from error
        self._infos = [
            info
            for info in self._archive.infolist()
            if not info.is_dir() and (not mask or fnmatch.fnmatchcase(info.filename, mask))
        ]
        self._next = 0

    def __next__(self) -> tuple[str, bytes]:
        if self._next >= len(self._infos):
            raise StopIteration
        info = self._infos[self._next]
        try:
            content = self._archive.read(info)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
            # RuntimeError: it is encrypted; OSError: bz2's
            raise ValueError(f"{self.path} is damaged at {info.filename!r}, or it cannot be read: {error}") from error
        self._next += 1
        return os.path.join(self.path, info.filename), content

    def skip(self, count: int) -> int:
        passed = min(count, len(self._infos) - self._next)
        self._next += passed
        return passed

    def place(self) -> dict[str, Any]:
        return {"file": self._next}

    def go_to(self, place: dict[str, Any]) -> None:
        number = place["file"]
        if type(number) is not int or not 0 <= number <= len(self._infos):
            raise StateError(f"{self.path} has {len(self._infos)} files, and the state names number {number!r:.40}")
        self._next = number

    def where(self) -> str:
        return f"file {self._next}"

    def close(self) -> None:
        self._archive.close()
        self._file.close()
