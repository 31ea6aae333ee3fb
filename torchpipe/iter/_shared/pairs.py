"""Pairs (path, open stream), as ``open_files`` yields them: checking what a node gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import IOBase
from typing import Any

from torchpipe.formats.storage.streams import StreamWrapper, wrap_stream

__all__ = ["naming_path", "pair_of", "path_and_stream"]


def pair_of(form: str, item: Any, parts: str) -> tuple[Any, Any]:
    """``item`` as a pair. Raises: TypeError, with the functional form that got it and the ``parts`` that it needs."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    raise TypeError(f"{form} needs pairs {parts}, got {item!r:.200}")


def path_and_stream(form: str, item: Any, *, binary: bool = True) -> tuple[str, StreamWrapper]:
    """The path and the stream of a pair; other open files than StreamWrappers are wrapped in one.

    Raises: TypeError, with the functional form that got it, for another item.
    """
    kind, mode = ("binary stream", "mode='b'") if binary else ("stream", "")
    parts = f"(path, {kind}), as from open_files({mode})"
    name, stream = pair_of(form, item, parts)
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"{form} needs pairs {parts}, got {item!r:.200}")
    path = os.fspath(name)
    if not isinstance(stream, IOBase | StreamWrapper) and not hasattr(stream, "read"):
        raise TypeError(f"{form} needs a {kind} for {path!r}, got {stream!r:.200}")
    return path, stream if isinstance(stream, StreamWrapper) else wrap_stream(stream, name=path)


@contextmanager
def naming_path(path: str, doing: str = "reading") -> Iterator[None]:
    """Add to an exception which file it came from."""
    try:
        yield
    except Exception as error:
        note = f"while {doing} {path}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise
