"""Files that nodes open and write.

Base of the nodes that open files: by paths and URLs.

Base of the nodes that write files.

Hashes of files and streams, as ``check_hash`` and ``on_disk_cache`` compare them.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.formats.storage.streams import StreamWrapper, close_stream, wrap_stream
from torchpipe.formats.storage.writing import path_in
from torchpipe.iter._shared.bases import CountingIterator, ItemIterator, OnePerItem
from torchpipe.iter._shared.paths import naming_path, pair_of
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_columns

__all__ = ["Digest", "FileSaver", "Opener", "check_hash_type", "pieces_of"]


class _OpenIterator(CountingIterator[tuple[str, StreamWrapper]]):
    node: Opener

    def __init__(self, node: Opener, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.streams: weakref.WeakSet[StreamWrapper] = weakref.WeakSet()
        self.open = self.with_retries(self._open)

    def run(self) -> Iterator[tuple[str, StreamWrapper]]:
        for path in self.source.items():
            if not isinstance(path, str | os.PathLike):
                raise TypeError(
                    f"{self.node.form} needs paths or URLs, got {path!r:.200} of type {type(path).__name__}"
                )
            try:
                opened = [self.open(os.fspath(path))]
            except Exception as error:
                if not self.node.skip_on_error:
                    raise
                warn_user(f"{error}, skipping {path}", UserWarning)
                continue
            yield opened.pop()  # the consumer alone decides how long the stream lives

    def _open(self, path: str) -> tuple[str, StreamWrapper]:
        name, file = self.node.opened(path)
        stream = wrap_stream(file, name=name)
        self.streams.add(stream)
        return name, stream

    def close(self) -> None:
        try:
            super().close()
        finally:
            for stream in list(self.streams):
                close_stream(stream)


class Opener(OnePerItem[tuple[str, StreamWrapper]]):
    """Yields pairs (name, open stream). A stream is closed with the last reference to it, at the latest by ``close()``.

    With ``skip_on_error`` what cannot be opened is left out, and a warning says so.
    """

    iterator = _OpenIterator
    skip_on_error = False

    def __init__(self, source: IterDataPipe[Any]) -> None:
        super().__init__(source)

    @abstractmethod
    def opened(self, path: str) -> tuple[str, Any]:
        """The name of what is at ``path``, and its open file."""


class _SaveIterator(ItemIterator[str]):
    node: FileSaver

    def __init__(self, node: FileSaver, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.path_of = os.fspath if node.filepath_fn is None else self.with_retries(node.filepath_fn)

    def run(self) -> Iterator[str]:
        for item in self.source.items():
            yield self._saved(item)

    def _saved(self, item: Any) -> str:
        name, data = pair_of(self.node.form, item, "(name, data)")
        path = path_in(self.node.root, os.fspath(self.path_of(name)))
        with naming_path(path, "writing"):
            self.node.write(path, data)
        return path


class FileSaver(OnePerItem[str]):
    """Writes the data of pairs (name, data), and yields the paths; names that lead out of ``root`` are refused."""

    iterator = _SaveIterator
    one_to_one = True

    def __init__(
        self,
        source: IterDataPipe[tuple[Any, Any]],
        filepath_fn: Callable[[Any], str] | None,
        root: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__(source)
        if filepath_fn is not None:
            check_columns("filepath_fn", filepath_fn, None)
        self.filepath_fn = filepath_fn
        self.root = None if root is None else os.fspath(root)

    @abstractmethod
    def write(self, path: str, data: Any) -> None:
        """Write a file."""


_PIECE_BYTES = 1 << 20


def check_hash_type(hash_type: str) -> str:
    """``hash_type``. Raises: ValueError unless it is "sha256" or "md5"."""
    if hash_type not in ("sha256", "md5"):
        raise ValueError(f"Invalid hash_type {hash_type!r}: it is 'sha256' or 'md5'")
    return hash_type


def pieces_of(content: Any) -> Iterator[Any]:
    """The pieces of an open stream, or of another iterable; text and bytes are one piece."""
    if isinstance(content, str | bytes | bytearray):
        yield content
    elif hasattr(content, "read"):
        while piece := content.read(_PIECE_BYTES):
            yield piece
    else:
        yield from content


class Digest:
    """A hash of pieces of bytes or text (as UTF-8)."""

    def __init__(self, hash_type: str) -> None:
        self._hash = hashlib.new(hash_type, usedforsecurity=False)

    def add(self, piece: Any) -> None:
        self._hash.update(piece.encode() if isinstance(piece, str) else piece)

    def of(self, content: Any) -> str:
        """The hash of all pieces of ``content``, in hexadecimal."""
        for piece in pieces_of(content):
            self.add(piece)
        return self.text()

    def text(self) -> str:
        return self._hash.hexdigest()
