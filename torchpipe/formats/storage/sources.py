"""``RemoteSource``: one file behind a URL, and how it is opened: by fsspec, in any thread."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.ahead import AheadFile
from torchpipe.formats.storage.options import split_options
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, ReopenedFile, can_seek_back

__all__ = ["RemoteSource", "file_system"]

_PASS_BYTES = 1 << 18
# By which file systems tell one file from another of its name: Google's, S3's and Azure's, the web's, others'.
_VERSIONS = ("generation", "VersionId", "ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime")
# Those that no other content has, even one that was written in the same second
_OF_CONTENT = ("generation", "VersionId", "ETag", "etag")
_WEB = ("http://", "https://")


def file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system of a URL, or of a local path, and the path in it."""
    import fsspec  # takes a while, and local files do without

    return fsspec.core.url_to_fs(url, **split_options(options)[0])  # type: ignore[no-any-return]


class RemoteSource:
    """The file at ``url``, with the options of :func:`~torchpipe.formats.storage.remote.open_url`.

    Its file system is the one of the thread that makes this: fsspec has one for each thread, with its own connections.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        open_options: Mapping[str, Any] | None = None,
        retries: int = DEFAULT_RETRIES,
    ) -> None:
        self.url = url
        self.reading = split_options(options)[1]
        self._options = options
        self._open_options = dict(open_options or {})
        self._retries = retries
        self._of_web = url.lower().startswith(_WEB)
        self._pid = os.getpid()
        self._system, self._path = file_system(url, options)
        self._tells_content = False  # does the version?

    def can_be_ahead(self) -> bool:
        """True if it may be read by several requests at once: its file system is made for them (``async_impl``: S3,
        Google's, Azure's, the web). A chain has what it keeps for itself, and is not opened in several threads.
        """
        return "::" not in self.url and bool(getattr(self._system, "async_impl", False))

    def opened(self) -> io.RawIOBase:
        """The file, for reading. Raises: what the file system does, after it was tried again."""
        # Some servers of the web take no ranges, which they say when they are asked
        in_sequence = self._open_in_sequence if self._of_web else None
        file = ReopenedFile(self.url, self._open_at, self._retries, in_sequence)
        rest = self._open_options
        # Who chooses how fsspec reads ahead has that
        chosen = rest.get("cache_type", "none") != "none" or rest.keys() & {"block_size", "cache_options"}
        off = not self.reading.ahead_bytes and self.reading.cache is None
        if chosen or off or not self.can_be_ahead() or not file.has_ranges:
            return file
        content = f"{self.url}\0{file.version}\0{file.size}"
        return AheadFile(file, self.reading.ahead_bytes, self.reading.cache if self._tells_content else None, content)

    def _open_in_sequence(self, offset: int) -> tuple[Any, int | None, str | None]:
        return self._open_at(offset, {"block_size": 0})

    def _open_at(self, offset: int, more: Mapping[str, Any] = {}) -> tuple[Any, int | None, str | None]:
        if self._pid != os.getpid():  # a forked child has connections of its own
            self._system, self._path = file_system(self.url, self._options)
            self._pid = os.getpid()
        self._system.invalidate_cache(self._path)  # a listing tells what was there when somebody listed
        file = self._system.open(self._path, "rb", **{**self._open_options, **more})
        size, (version, self._tells_content) = _size(file), self._version(file)
        if not offset:
            return file, size, version
        if can_seek_back(file):
            file.seek(offset)
        else:
            _pass_over(file, offset)
        return file, size, version

    def _version(self, file: Any) -> tuple[str | None, bool]:
        """The version that tells this file from another one of its name, if its system says; on the web, requests ask
        for it (RFC 9110, 13.1). And True if another content surely has another one.
        """
        details = getattr(getattr(file, "r", None), "headers", None) or getattr(file, "details", None)
        if self._of_web and isinstance(details, dict):  # the file of fsspec's tells its size alone
            details = file.fs.info(file.path)
        if not isinstance(details, Mapping):
            return None, False
        # S3 calls the version "null" where versions are not kept
        found = next((name for name in _VERSIONS if details.get(name) and details[name] != "null"), None)
        if found is None:
            return None, False
        version = str(details[found])
        is_weak = version.startswith("W/")
        if self._of_web and isinstance(getattr(file, "kwargs", None), dict):
            name = "If-Unmodified-Since" if found == "Last-Modified" else "If-Match"
            if not is_weak:
                file.kwargs["headers"] = {**file.kwargs.get("headers", {}), name: version}
        return version, found in _OF_CONTENT and not is_weak


def _size(file: Any) -> int | None:
    """In bytes; of a response that is read as it comes, what its headers say, if it comes as it is stored."""
    headers = getattr(getattr(file, "r", None), "headers", {})
    if headers.get("Content-Encoding", "identity") == "identity" and str(headers.get("Content-Length")).isdigit():
        return int(headers["Content-Length"])
    size = getattr(file, "size", None)
    return size if isinstance(size, int) else None


def _pass_over(file: Any, count: int) -> None:
    while count:
        piece = file.read(min(count, _PASS_BYTES))
        if not piece:
            raise EOFError(f"{count} bytes are missing")
        count -= len(piece)
