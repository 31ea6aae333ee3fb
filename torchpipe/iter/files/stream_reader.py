"""``read_from_stream``: the content of open files, whole or in pieces. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import naming_path, path_and_stream
from torchpipe.iter._shared.places import can_seek, go_to_place, place_in, stamp_of
from torchpipe.iter._shared.streams import StreamWrapper, close_stream
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count, check_input

__all__ = ["StreamReader"]


@functional_datapipe("read_from_stream")
class StreamReader(IterDataPipe[tuple[str, Any]]):
    """Takes pairs (path, stream), and yields pairs (path, content): the whole, or pieces of ``chunk`` bytes or letters.

    An empty file gives nothing. A stream is closed at its end.

    State: that of the input before the current file, and the place in the file. Resuming opens it again and goes there
    at once, if the stream can seek; else it reads the pieces before again, which a
    :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a ``chunk`` below 1; while iterating, TypeError for items that are no pairs, and what the
    stream raises, with a note of the path.
    """

    thins = True

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], chunk: int | None = None) -> None:
        check_input("read_from_stream", datapipe)
        self.datapipe = datapipe
        self.chunk = None if chunk is None else check_count("chunk", chunk, at_least=1)

    def iterate(self, context: Context) -> NodeIterator[tuple[str, Any]]:
        return _ReadIterator(self, context, self.datapipe)


class _ReadIterator(ExpandingIterator[tuple[str, Any]]):
    node: StreamReader

    def expand(self, item: Any) -> Iterator[tuple[str, Any]]:
        path, stream = path_and_stream("read_from_stream", item, binary=False)
        return (_PlacedPieces if can_seek(stream) else _Pieces)(path, stream, self.node.chunk)


class _Pieces(Iterator[tuple[str, Any]]):
    def __init__(self, path: str, stream: StreamWrapper, chunk: int | None) -> None:
        self._path = path
        self._stream = stream
        self._size = () if chunk is None else (chunk,)

    def __next__(self) -> tuple[str, Any]:
        with naming_path(self._path):
            piece = self._stream.read(*self._size)
        if not piece:
            close_stream(self._stream)
            raise StopIteration
        return self._path, piece


class _PlacedPieces(_Pieces):
    """The same of a stream that can seek. State: the place in it, and by what another file is known."""

    def __init__(self, path: str, stream: StreamWrapper, chunk: int | None) -> None:
        super().__init__(path, stream, chunk)
        self._stamp = stamp_of(stream)

    def state_dict(self) -> dict[str, Any]:
        return place_in(self._stream, self._stamp)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        go_to_place(self._stream, state, self._stamp, self._path)
