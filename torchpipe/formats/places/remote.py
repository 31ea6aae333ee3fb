"""Files at URLs, by fsspec: opened, listed and written.

Reading is tried again after errors that pass (``retrying``); a stream goes on where it stood.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.places.retrying import DEFAULT_RETRIES, ReopenedFile, attempt

__all__ = ["BUFFER_BYTES", "entries_of", "file_system", "open_url", "write_url"]

BUFFER_BYTES = 1 << 18
_TEXT = ("encoding", "errors", "newline")


def file_system(url: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system of a URL, or of a local path, and the path in it."""
    import fsspec  # takes a while, and local files do without

    return fsspec.core.url_to_fs(url, **(options or {}))  # type: ignore[no-any-return]


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

    ``options`` are those of the file system, ``open_options`` of its ``open``, and for text ``encoding``, ``errors``
    and ``newline``.
    """
    rest = dict(open_options or {})
    if set(mode) - set("rbt"):
        system, path = file_system(url, options)
        return system.open(path, mode, **rest)
    text = {name: rest.pop(name) for name in _TEXT if name in rest}

    def open_at(place: int) -> tuple[Any, int | None]:
        system, path = file_system(url, options)
        file = system.open(path, "rb", **rest)
        size = getattr(file, "size", None)
        if not place:
            return file, size
        if file.seekable():
            file.seek(place)
        else:
            _pass_over(file, place)
        return file, size

    binary = io.BufferedReader(ReopenedFile(url, open_at, retries), buffer_bytes)
    return binary if "b" in mode else io.TextIOWrapper(binary, **text)


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
