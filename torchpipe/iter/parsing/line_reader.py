"""``readlines``: the lines of open files. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.expanding import ExpandingIterator
from torchpipe.iter._shared.pairs import path_and_stream
from torchpipe.iter._shared.places import Lines, PlacedLines, lines_of
from torchpipe.iter._shared.text import Decoding
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count, check_input

__all__ = ["LineReader"]


@functional_datapipe("readlines")
class LineReader(IterDataPipe[Any]):
    """Takes pairs (path, stream), and yields pairs (path, line), or lines alone with ``return_path=False``.

    The first ``skip_lines`` of each file are left out. ``strip_newline`` takes newline characters from both ends of a
    line. Streams of bytes yield bytes, unless ``decode`` makes text of them by ``encoding`` and ``errors``. A stream is
    closed at its end.

    State: that of the input before the current file, and the place in the file. Resuming opens it again and goes there
    at once, if the stream can seek (of compressed ones, the bytes before are decompressed again); else it reads the
    lines before again, which a :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a negative ``skip_lines``; LookupError for an unknown encoding; while iterating, TypeError
    for items that are no pairs, and what the stream raises, with a note of the path; StateError where the file has
    changed since a state was saved, as far as its size and its end tell, if the stream is one of a file.
    """

    thins = True

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        check_input("readlines", source_datapipe)
        self.source_datapipe = source_datapipe
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.strip_newline = strip_newline
        self.decoding = Decoding.checked(encoding, errors) if decode else None
        self.return_path = return_path

    def iterate(self, context: Context) -> NodeIterator[Any]:
        return _LineIterator(self, context, self.source_datapipe)


class _LineIterator(ExpandingIterator[Any]):
    node: LineReader

    def expand(self, item: Any) -> Iterator[Any]:
        path, stream = path_and_stream("readlines", item, binary=False)
        lines = lines_of(path, stream, self.node.skip_lines)
        return (_PlacedItems if isinstance(lines, PlacedLines) else _Items)(self.node, lines)


class _Items(Iterator[Any]):
    """What the node makes of lines."""

    def __init__(self, node: LineReader, lines: Lines) -> None:
        self._node = node
        self._lines = lines

    def __next__(self) -> Any:
        node, line = self._node, next(self._lines)
        if node.strip_newline:
            line = line.strip("\r\n" if isinstance(line, str) else b"\r\n")
        if node.decoding is not None:
            line = node.decoding.text(line, self._lines.path)
        return (self._lines.path, line) if node.return_path else line


class _PlacedItems(_Items):
    _lines: PlacedLines

    def state_dict(self) -> dict[str, Any]:
        return self._lines.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lines.load_state_dict(state)
