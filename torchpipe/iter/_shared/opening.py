"""Base of the nodes that open files: by paths and URLs."""

from __future__ import annotations

import os
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from torchpipe.formats.storage.streams import StreamWrapper, close_stream, wrap_stream
from torchpipe.iter._shared.bases import CountingIterator, OnePerItem
from torchpipe.node.announce import warn_user
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe

__all__ = ["Opener"]


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
