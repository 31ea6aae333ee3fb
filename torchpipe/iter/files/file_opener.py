"""``open_files``: open the files whose paths the input gives. Runs wherever its shard runs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torchpipe.formats.places.remote import open_url
from torchpipe.formats.places.streams import StreamWrapper, close_stream, wrap_stream
from torchpipe.iter._shared.paths import made_of_files, named_files
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input, check_length

__all__ = ["FileOpener"]

_MODES = {"r": "r", "t": "rt", "rt": "rt", "b": "rb", "rb": "rb"}


@functional_datapipe("open_files")
class FileOpener(IterDataPipe[tuple[str, StreamWrapper]]):
    """Yields pairs (path, open stream) for the paths of the input.

    ``mode`` is ``"r"``, ``"t"`` or ``"rt"`` for text and ``"b"`` or ``"rb"`` for bytes. Paths with a scheme
    (``s3://...``) are opened by fsspec, as ``open_files_by_fsspec`` does. A stream is closed when the last reference to
    it goes, and at the latest by ``close()``, at the end of the pass. ``length`` is what ``len()`` says, -1 if unknown.

    State: none of its own. An open stream cannot be saved: put ``shuffle`` and ``batch`` before this node, or after
    one that reads.

    Raises: ValueError for other modes, or ``encoding`` with a binary one; while iterating, TypeError for items that are
    no paths and the OSError of a file that cannot be opened.
    """

    def __init__(
        self, datapipe: IterDataPipe[Any], mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> None:
        check_input("open_files", datapipe)
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        if "b" in mode and encoding is not None:
            raise ValueError(f"encoding={encoding!r} needs a text mode, got mode={mode!r}")
        self.datapipe = datapipe
        self.mode = mode
        self.encoding = encoding
        self.length = check_length(length)

    def made_of(self) -> Mapping[str, Any]:
        return made_of_files(self, named_files(self.datapipe))

    def __len__(self) -> int:
        return len(self.datapipe) if self.length < 0 else self.length

    def iterate(self, context: Context) -> NodeIterator[tuple[str, StreamWrapper]]:
        return _OpenIterator(self, context)


class _OpenIterator(NodeIterator[tuple[str, StreamWrapper]]):
    node: FileOpener

    def __init__(self, node: FileOpener, context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        self.opened: weakref.WeakSet[StreamWrapper] = weakref.WeakSet()
        self.open = self.with_retries(self._open)

    def run(self) -> Iterator[tuple[str, StreamWrapper]]:
        for path in self.source.items():
            if not isinstance(path, str | os.PathLike):
                raise TypeError(f"open_files needs paths, got {path!r} of type {type(path).__name__}")
            yield self.open(os.fspath(path))

    def _open(self, path: str) -> tuple[str, StreamWrapper]:  # no local of run() may keep the stream alive
        mode, encoding = _MODES[self.node.mode], self.node.encoding
        if "://" in path:
            file = open_url(path, mode, open_options={} if encoding is None else {"encoding": encoding})
        else:
            file = open(path, mode, encoding=encoding)
        stream = wrap_stream(file, name=path)
        self.opened.add(stream)
        return path, stream

    def leave_out(self) -> bool:
        return True

    def close(self) -> None:
        try:
            super().close()
        finally:
            for stream in list(self.opened):
                close_stream(stream)
