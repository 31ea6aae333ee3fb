"""``read_from_stream``: the content of open files, whole or in pieces."""

from __future__ import annotations

from typing import Any

from torchpipe.formats.records import ContentRecords
from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.iter._shared.reading import StreamReader as Base
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["StreamReader"]


@functional_datapipe("read_from_stream")
class StreamReader(Base[tuple[str, Any]]):
    """Takes pairs (path, stream), and yields pairs (path, content): the whole, or pieces of ``chunk`` bytes or letters.

    An empty file gives nothing. A stream is closed at its end.

    State: that of the input before the current file, and the position in the file. Resuming opens it again and goes
    there at once, if the stream can seek; else it reads the pieces before again, which a
    :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a ``chunk`` below 1; while iterating, TypeError for other items, and what the
    stream raises, with a note of the path.
    """

    binary = False

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], chunk: int | None = None) -> None:
        super().__init__(datapipe)
        self.chunk = None if chunk is None else check_count("chunk", chunk, at_least=1)

    def records(self, path: str, stream: StreamWrapper) -> _Pieces:
        return _Pieces(Content(path, None, opened=stream), self.chunk)


class _Pieces(ContentRecords[tuple[str, Any]]):
    unit = "piece"

    def __init__(self, content: Content, chunk: int | None) -> None:
        super().__init__(content)
        self._size = () if chunk is None else (chunk,)

    def __next__(self) -> tuple[str, Any]:
        piece = self._content.stream.read(*self._size)
        if not piece:
            raise StopIteration
        self._advance(len(piece))
        return self.path, piece
