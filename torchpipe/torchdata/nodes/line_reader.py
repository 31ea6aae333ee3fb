"""``readlines``: the lines of open files."""

from __future__ import annotations

from typing import Any

from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.text import Lines, check_decoding
from torchpipe.iter._shared.reading import StreamReader
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["LineReader"]


@functional_datapipe("readlines")
class LineReader(StreamReader[Any]):
    """Takes pairs (path, stream), and yields pairs (path, line), or lines alone with ``return_path=False``.

    The first ``skip_lines`` of each file are left out. ``strip_newline`` takes newline characters from both ends of a
    line. Streams of bytes yield bytes, unless ``decode`` makes text of them by ``encoding`` and ``errors``. A stream is
    closed at its end. With ``strict``, bytes that are no text are an error, unless ``errors`` says what becomes of
    them, and a byte order mark is no part of a text; ``strict=False`` leaves such bytes out, and keeps the mark, as
    torchdata does.

    State: that of the input before the current file, and the position in the file. Resuming opens it again and goes
    there at once, if the stream can seek (of compressed ones, the bytes before are decompressed again); else it reads
    the lines before again, which a :class:`~torchpipe.ReplayWarning` announces.

    Raises: ValueError for a negative ``skip_lines``; LookupError for an unknown encoding; while iterating, TypeError
    for items that are no pairs, and what the stream raises, with a note of the path; StateError where the file has
    changed since a state was saved, as far as its size and its end tell, if the stream is one of a file.
    """

    binary = False

    def __init__(
        self,
        source_datapipe: IterDataPipe[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str | None = None,
        return_path: bool = True,
        strict: bool = True,
    ) -> None:
        super().__init__(source_datapipe)
        self.skip_lines = check_count("skip_lines", skip_lines, at_least=0)
        self.strip_newline = strip_newline
        self.decoding = check_decoding(encoding, errors, strict) if decode else None
        self.strict = strict
        self.return_path = return_path

    def records(self, path: str, stream: StreamWrapper) -> _Lines:
        return _Lines(self, Content(path, None, opened=stream))


class _Lines(Lines[Any]):
    def __init__(self, node: LineReader, content: Content) -> None:
        super().__init__(content, node.decoding, node.skip_lines, keeps_bom=not node.strict)
        self._strip = node.strip_newline
        self._return_path = node.return_path

    def _made(self, line: Any) -> Any:
        if self._strip:
            line = line.strip("\r\n" if isinstance(line, str) else b"\r\n")
        line = self._decoded(line)
        return (self.path, line) if self._return_path else line
