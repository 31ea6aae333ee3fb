"""Files at URLs, by fsspec: opened, listed and written.

Reading is tried again after errors that pass (``retrying``); a stream goes on where it stood. Objects that are read by
ranges are read ahead (``ahead``), and kept on disk where the options say so (``block_cache``).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.ahead import AheadFile
from torchpipe.formats.storage.options import split_options
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, ReopenedFile, attempt, can_seek_back, is_transient

__all__ = ["BUFFER_BYTES", "entries_of", "file_system", "is_there", "open_url", "write_url"]

BUFFER_BYTES = 1 << 18
# By which file systems tell one file from another of its name: Google's, S3's and Azure's, the web's, others'.
_VERSIONS = ("generation", "VersionId", "ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime")
# Those that no other content has, even one that was written in the same second
_OF_CONTENT = ("generation", "VersionId", "ETag", "etag")
_WEB = ("http://", "https://")
_TEXT = ("encoding", "errors", "newline")


def file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system of a URL, or of a local path, and the path in it."""
    import fsspec  # takes a while, and local files do without

    return fsspec.core.url_to_fs(url, **split_options(options)[0])  # type: ignore[no-any-return]


def open_url(
    url: str,
    mode: str = "rb",
    *,
    options: Mapping[str, Any] | None = None,
    open_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    buffer_bytes: int = BUFFER_BYTES,
) -> Any:
    """An open stream of the file at ``url``: buffered, and able to seek, where it is read.

    ``options`` are those of the file system, and torchpipe's three (``storage/options.py``); ``open_options`` those of
    its ``open``, and for text ``encoding``, ``errors`` and ``newline``.
    """
    rest = dict(open_options or {})
    reading = split_options(options)[1]
    if set(mode) - set("rbt"):
        system, path = file_system(url, options)
        return system.open(path, mode, **rest)
    text = {name: rest.pop(name) for name in _TEXT if name in rest}

    tells_content = False  # does the version?

    def open_at(offset: int, more: Mapping[str, Any] = {}) -> tuple[Any, int | None, str | None]:
        nonlocal tells_content
        system, path = file_system(url, options)
        if reading.cache is not None:
            system.invalidate_cache(path)  # of listings, which may be older than what is kept on disk
        file = system.open(path, "rb", **{**rest, **more})
        size, (version, tells_content) = _size(file), _version(file, url)
        if not offset:
            return file, size, version
        if can_seek_back(file):
            file.seek(offset)
        else:
            _pass_over(file, offset)
        return file, size, version

    of_web = url.lower().startswith(_WEB)  # some of its servers take no ranges, which they say when they are asked
    file = ReopenedFile(url, open_at, retries, (lambda offset: open_at(offset, {"block_size": 0})) if of_web else None)
    raw: io.RawIOBase = file
    # Who chooses how fsspec reads ahead has that
    chosen = rest.get("cache_type", "none") != "none" or rest.keys() & {"block_size", "cache_options"}
    if file.has_ranges and not chosen:
        content = f"{url}\0{file.version}\0{file.size}"
        raw = AheadFile(file, reading.ahead_bytes, reading.cache if tells_content else None, content)
    binary = io.BufferedReader(raw, buffer_bytes)
    return binary if "b" in mode else io.TextIOWrapper(binary, **text)


def _size(file: Any) -> int | None:
    """In bytes; of a response that is read as it comes, what its headers say, if it comes as it is stored."""
    headers = getattr(getattr(file, "r", None), "headers", {})
    if headers.get("Content-Encoding", "identity") == "identity" and str(headers.get("Content-Length")).isdigit():
        return int(headers["Content-Length"])
    size = getattr(file, "size", None)
    return size if isinstance(size, int) else None


def _version(file: Any, url: str) -> tuple[str | None, bool]:
    """What tells this file from another one of its name, if its system says; of the web, also each request asks for
    that one (RFC 9110, 13.1). And whether another content has surely another one."""
    of_web = url.lower().startswith(_WEB)
    details = getattr(getattr(file, "r", None), "headers", None) or getattr(file, "details", None)
    if of_web and isinstance(details, dict):  # the file of fsspec's tells its size alone
        details = file.fs.info(file.path)
    if not isinstance(details, Mapping):
        return None, False
    # S3 calls the version "null" where versions are not kept
    found = next((name for name in _VERSIONS if details.get(name) and details[name] != "null"), None)
    if found is None:
        return None, False
    version = str(details[found])
    is_weak = version.startswith("W/")
    if of_web and isinstance(getattr(file, "kwargs", None), dict):
        name = "If-Unmodified-Since" if found == "Last-Modified" else "If-Match"
        if not is_weak:
            file.kwargs["headers"] = {**file.kwargs.get("headers", {}), name: version}
    return version, found in _OF_CONTENT and not is_weak


def _pass_over(file: Any, count: int) -> None:
    while count:
        piece = file.read(min(count, BUFFER_BYTES))
        if not piece:
            raise EOFError(f"{count} bytes are missing")
        count -= len(piece)


def entries_of(url: str, options: Mapping[str, Any] | None = None, retries: int = DEFAULT_RETRIES) -> list[str] | None:
    """The URLs of what is in the folder at ``url``, sorted; None if it is a file. Raises: FileNotFoundError."""

    def look() -> list[str] | None:
        system, path = file_system(url, options)
        system.invalidate_cache(path)
        if system.isfile(path):
            return None
        return [_as_url(url, name) for name in sorted(system.ls(path, detail=False)) if name.rstrip("/") != path]

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


def _as_url(root: str, path: str) -> str:
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
