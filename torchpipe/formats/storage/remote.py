"""Files at URLs, by fsspec: opened, listed and written.

Reading is tried again after errors that pass (``retrying``); a stream goes on where it stood. Objects that are read by
ranges are read ahead (``ahead``), and kept on disk where the options say so (``block_cache``).

``RemoteSource``: one file behind a URL, and how it is opened: by fsspec, in any thread.

``OpenedAhead``: the files that a reader comes to next, opened and begun while it reads the one before.

Files are opened in ``RequestThreads``, for the thread that reads. What is opened ahead is an open file
and its first bytes: no part of a position, nor of a state.

Who owns what
    an OpenedAhead   belongs to a reader's pass, which closes it; it owns the files until they are taken
    a file taken     belongs to whoever opens that URL within ``offered()``: in the reader's own thread

How each wait ends
    taking waits for a file   its opening ends, as the server's answer or timeout does; one that no thread has begun to
                              open is not waited for. What could not be opened is opened anew, by the one who needs it
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from torchpipe.formats.storage.ahead import AheadFile, request_threads
from torchpipe.formats.storage.block_cache import split_options
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, ReopenedFile, attempt, can_seek_back, is_transient

__all__ = [
    "FILES",
    "Beginning",
    "OpenedAhead",
    "RemoteSource",
    "as_url",
    "entries_of",
    "file_system",
    "is_there",
    "open_url",
    "write_url",
]

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


FILES = 4

Beginning = tuple[str, int, "int | None"]
"""A URL, the byte at which reading it begins (a negative number: so many before its end), and where it may stop."""

_offers: ContextVar[OpenedAhead | None] = ContextVar("torchpipe_opened_ahead", default=None)


class _Opening:
    """A file that is being opened. ``run`` is called in a thread, all else in the reader's."""

    def __init__(self, source: RemoteSource, beginning: Beginning) -> None:
        self._source = source
        self._beginning = beginning
        self._lock = threading.Lock()  # of the two below
        self._begun = self._dropped = False
        self._file: AheadFile | None = None
        self._done = threading.Event()

    def run(self) -> None:
        with self._lock:
            if self._dropped:
                return
            self._begun = True
        try:
            with suppress(Exception):  # raised, if it is, where the file is needed
                self._open()
        finally:
            self._done.set()

    def _open(self) -> None:
        with ExitStack() as closing:
            file = closing.enter_context(self._source.opened())
            if not isinstance(file, AheadFile):
                return
            file.begin_at(*self._beginning[1:])
            with self._lock:
                if not self._dropped:
                    self._file = file
                    closing.pop_all()

    def taken(self) -> AheadFile | None:
        with self._lock:
            if not self._begun:
                self._dropped = True
                return None
        self._done.wait()
        file, self._file = self._file, None
        return file

    def drop(self) -> None:
        """Does not wait."""
        with self._lock:
            self._dropped = True
            file, self._file = self._file, None
        if file is not None:
            file.close()


class OpenedAhead:
    """Files of one reader, at most ``FILES``, reached with ``options``. Not thread-safe."""

    def __init__(self, options: Mapping[str, Any] | None) -> None:
        self.options = options
        self._pid = os.getpid()
        self._openings: dict[Beginning, _Opening] = {}

    def prepare(self, beginnings: Sequence[Beginning]) -> None:
        """Have these opened, and those before that are not among them closed."""
        self._leave_parent()
        for beginning in set(self._openings).difference(beginnings):
            self._openings.pop(beginning).drop()
        for beginning in beginnings[:FILES]:
            if beginning in self._openings:
                continue
            try:
                source = RemoteSource(beginning[0], self.options)
            except Exception:  # raised, if it is, where the file is needed
                continue
            if source.reading.ahead_bytes and source.can_be_ahead():
                opening = self._openings[beginning] = _Opening(source, beginning)
                request_threads().submit(opening)

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Who opens a URL within this, with the same options, is given the file that was opened ahead."""
        token = _offers.set(self)
        try:
            yield
        finally:
            _offers.reset(token)

    def take(self, url: str) -> AheadFile | None:
        self._leave_parent()
        beginning = next((beginning for beginning in self._openings if beginning[0] == url), None)
        return None if beginning is None else self._openings.pop(beginning).taken()

    def _leave_parent(self) -> None:
        """In a forked child, what the parent opens will never come."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._openings = {}

    def close(self) -> None:
        """Idempotent; does not wait."""
        self.prepare(())


def _taken_ahead(url: str, options: Mapping[str, Any] | None) -> AheadFile | None:
    """The file at ``url``, if it was opened ahead for who calls this."""
    offers = _offers.get()
    return None if offers is None or (offers.options or {}) != (options or {}) else offers.take(url)


_BUFFER_BYTES = 1 << 18
_TEXT = ("encoding", "errors", "newline")


def open_url(
    url: str,
    mode: str = "rb",
    *,
    options: Mapping[str, Any] | None = None,
    open_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    buffer_bytes: int = _BUFFER_BYTES,
) -> Any:
    """An open stream of the file at ``url``: buffered, and able to seek, where it is read.

    ``options`` are those of the file system, and torchpipe's three (``block_cache``); ``open_options`` those of its
    ``open``, and for text ``encoding``, ``errors`` and ``newline``.
    """
    rest = dict(open_options or {})
    if set(mode) - set("rbt"):
        system, path = file_system(url, options)
        return system.open(path, mode, **rest)
    text = {name: rest.pop(name) for name in _TEXT if name in rest}
    raw: io.RawIOBase | None = None
    if rest.items() <= {("cache_type", "none")}:
        raw = _taken_ahead(url, options)
    if raw is None:
        raw = RemoteSource(url, options, rest, retries).opened()
    binary = io.BufferedReader(raw, buffer_bytes)
    return binary if "b" in mode else io.TextIOWrapper(binary, **text)


def entries_of(url: str, options: Mapping[str, Any] | None = None, retries: int = DEFAULT_RETRIES) -> list[str] | None:
    """The URLs of what is in the folder at ``url``, sorted; None if it is a file. Raises: FileNotFoundError."""

    def look() -> list[str] | None:
        system, path = file_system(url, options)
        system.invalidate_cache(path)
        if system.isfile(path):
            return None
        return [as_url(url, name) for name in sorted(system.ls(path, detail=False)) if name.rstrip("/") != path]

    return attempt(look, f"listing {url}", retries)


def is_there(url: str, options: Mapping[str, Any] | None = None, retries: int = DEFAULT_RETRIES) -> bool:
    """True if there is a file at ``url``. Raises: what is neither yes nor no, such as a server that is busy."""

    def look() -> bool:
        system, path = file_system(url, options)
        try:
            system.info(path)
        except FileNotFoundError as error:
            if is_transient(error):  # fsspec calls whatever a server of the web answers so
                raise
            return False
        except PermissionError:  # where nobody may list, object stores say this of what is not there
            return False
        return True

    return attempt(look, f"looking for {url}", retries)


def as_url(root: str, path: str) -> str:
    """``path``, as the file system that belongs to ``root`` has it, as a URL of the same kind."""
    if "://" in path or "://" not in root:
        return path
    first, chain, rest = root.partition("::")
    if chain and "://" in first:  # zip://folder::s3://bucket/x.zip: the path is in the archive
        return f"{first.partition('://')[0]}://{path}::{rest}"
    return f"{root.rpartition('://')[0]}://{path}"


def write_url(
    url: str,
    mode: str,
    data: Any,
    *,
    options: Mapping[str, Any] | None = None,
    open_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
) -> None:
    """Write ``data`` to the file at ``url``; what begins anew (``"w"``) is tried again after errors that pass."""

    def write() -> None:
        system, path = file_system(url, options)
        with system.open(path, mode, **(open_options or {})) as file:
            file.write(data)

    attempt(write, f"writing {url}", retries if "w" in mode else 0)
