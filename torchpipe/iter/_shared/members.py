"""The files in an archive that can be opened in any order, one after the other. Runs wherever its nodes run."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.iter._shared.places import check_stamp, stamp_of
from torchpipe.iter._shared.streams import StreamWrapper, close_stream, close_stream_after_parts, wrap_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_input, check_length

__all__ = ["ArchiveLoader"]


class ArchiveLoader(IterDataPipe[tuple[str, StreamWrapper]]):
    """Base of the nodes that read archives with a table of their files: define :meth:`files` and :meth:`open_file`."""

    thins = True
    form = ""  # the functional form, for messages

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        check_input(self.form, datapipe)
        self.datapipe = datapipe
        self.length = check_length(length)

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError(f"{self.form} does not know how many files there are: pass length= if you do")
        return self.length

    @abstractmethod
    def files(self, stream: StreamWrapper) -> tuple[Any, Sequence[Any]]:
        """The opened archive, and what describes each file in it, with an attribute ``filename``."""

    @abstractmethod
    def open_file(self, archive: Any, file: Any) -> Any:
        """One of the files, open for reading."""

    def iterate(self, context: Context) -> NodeIterator[tuple[str, StreamWrapper]]:
        return _ArchiveIterator(self, context, self.datapipe)


class _ArchiveIterator(ExpandingIterator[tuple[str, StreamWrapper]]):
    node: ArchiveLoader

    def expand(self, item: Any) -> Iterator[tuple[str, StreamWrapper]]:
        return _Files(self.node, *path_and_stream(self.node.form, item))


class _Files(Iterator[tuple[str, StreamWrapper]]):
    """The files of one archive. State: how many were handed out, and by what another archive is known."""

    def __init__(self, node: ArchiveLoader, path: str, stream: StreamWrapper) -> None:
        self._node = node
        self._path = path
        self._stream = stream
        self._index = 0
        self._stamp = stamp_of(stream)
        with naming_path(path, "reading the archive"):
            self._archive, self._files = node.files(stream)

    def __next__(self) -> tuple[str, StreamWrapper]:
        if self._index >= len(self._files):
            close_stream_after_parts(self._stream)  # once the streams made of it are closed: they may be read later
            raise StopIteration
        file = self._files[self._index]
        try:
            with naming_path(self._path, "reading the archive"):
                content = self._node.open_file(self._archive, file)
        except Exception:
            close_stream(self._stream)
            raise
        self._index += 1
        inner = os.path.normpath(os.path.join(self._path, file.filename))
        return inner, wrap_stream(content, parent=self._stream, name=inner)

    def state_dict(self) -> dict[str, Any]:
        return {"index": self._index, "file": self._stamp}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        check_stamp(self._path, state["file"], self._stamp)
        self._index = stored_count(state, "index", at_most=len(self._files))
