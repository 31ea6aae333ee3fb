"""Index files beside archives, which say where their samples or records begin: looked up here, read by each format.

``a.tar`` may have ``a.tar.idx``, ``a.idx``, ``a.tar.index`` or ``a.index``. Runs in the process that builds a graph.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torchpipe.formats.storage.content import open_stored
from torchpipe.formats.storage.paths import is_remote
from torchpipe.formats.storage.remote import is_there
from torchpipe.formats.storage.retrying import is_transient

__all__ = ["Index", "find_index", "folders_with_indexes", "misfit"]


class Index(NamedTuple):
    name: str
    content: bytes


def _names(path: str) -> tuple[str, ...]:
    stem = os.path.splitext(path)[0]
    return f"{path}.idx", f"{stem}.idx", f"{path}.index", f"{stem}.index"


def find_index(
    path: str, remote: Mapping[str, int] | None = None, storage_options: Mapping[str, Any] | None = None
) -> Index | None:
    """The index beside ``path``; None without any. Of a URL the one that ``remote``, of
    :func:`folders_with_indexes`, lets expect. Raises: what is neither yes nor no, such as a server that is busy.
    """
    if not is_remote(path):
        name = next(filter(_is_here, _names(path)), None)
    else:
        kind = (remote or {}).get(os.path.dirname(path))
        name = None if kind is None else _names(path)[kind]
    if name is None:
        return None
    try:
        with open_stored(name, storage_options) as file:
            return Index(name, file.read())
    except FileNotFoundError as error:
        if is_transient(error):  # fsspec calls whatever a server of the web answers so
            raise
        return None


def _is_here(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def folders_with_indexes(paths: Iterable[str], storage_options: Mapping[str, Any] | None = None) -> dict[str, int]:
    """The folders of URLs with an index beside the first of ``paths`` in them, and which of its names it has there.

    So a thousand archives without any take no thousand requests.
    """
    first: dict[str, str] = {}
    for path in paths:
        if is_remote(path) and "::" not in path and "?" not in path:
            first.setdefault(os.path.dirname(path), path)
    found = {}
    for folder, path in first.items():
        for kind, name in enumerate(_names(path)):
            if is_there(name, storage_options):
                found[folder] = kind
                break
    return found


def misfit(index: Index, path: str, size: int) -> ValueError:
    """The error for an index of another archive."""
    return ValueError(f"{index.name} does not fit {path} of {size} bytes: make it anew, or remove it")
