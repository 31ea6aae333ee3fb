"""Files at URLs, by fsspec: opened, listed and written.

Reading is tried again after errors that pass (``retrying``); a stream goes on where it stood. Objects that are read by
ranges are read ahead (``ahead``), and kept on disk where the options say so (``block_cache``).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from torchpipe.formats.storage.opened_ahead import taken_ahead
from torchpipe.formats.storage.retrying import DEFAULT_RETRIES, attempt, is_transient
from torchpipe.formats.storage.sources import RemoteSource, file_system

__all__ = ["BUFFER_BYTES", "as_url", "entries_of", "file_system", "is_there", "open_url", "write_url"]

BUFFER_BYTES = 1 << 18
_TEXT = ("encoding", "errors", "newline")


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
    if set(mode) - set("rbt"):
        system, path = file_system(url, options)
        return system.open(path, mode, **rest)
    text = {name: rest.pop(name) for name in _TEXT if name in rest}
    raw: io.RawIOBase | None = None
    if rest.items() <= {("cache_type", "none")}:
        raw = taken_ahead(url, options)
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
