"""``load_from_bz2`` and ``load_from_xz``: single compressed files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchpipe.formats.places.streams import StreamWrapper, close_stream_after_parts, wrap_stream
from torchpipe.iter._shared.bases import ItemIterator, OneInput
from torchpipe.iter._shared.pairs import path_and_stream
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_length

__all__ = ["Bz2FileLoader", "XzFileLoader"]


class _FileIterator(ItemIterator[tuple[str, StreamWrapper]]):
    node: _FileLoader

    def run(self) -> Iterator[tuple[str, StreamWrapper]]:
        open_file, ending = self.node.opener(), self.node.ending
        for item in self.source.items():
            path, stream = path_and_stream(self.node.form, item)
            inner = path.removesuffix(ending)
            made = [wrap_stream(open_file(stream), parent=stream, name=inner)]
            close_stream_after_parts(stream)
            del item, stream  # the consumer alone decides how long they live
            yield inner, made.pop()


class _FileLoader(OneInput[tuple[str, StreamWrapper]]):
    form = ""

    iterator = _FileIterator
    ending = ""

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(self.form, datapipe)
        self.length = check_length(length)

    def __len__(self) -> int:
        return len(self.source) if self.length < 0 else self.length

    def opener(self) -> Callable[[Any], Any]:
        raise NotImplementedError


@functional_datapipe("load_from_bz2")
class Bz2FileLoader(_FileLoader):
    """Takes pairs (path, binary stream) of bz2 files, and yields pairs (path without ``.bz2``, decompressed stream).

    ``length`` is what ``len()`` says, -1 for that of the input. A file is closed with the stream made of it.

    State: none of its own. Raises: while iterating, TypeError for items that are no such pairs; reading the stream
    raises EOFError or OSError for damaged files.
    """

    form, ending = "load_from_bz2", ".bz2"

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(datapipe, length)

    def opener(self) -> Callable[[Any], Any]:
        import bz2

        return bz2.open


@functional_datapipe("load_from_xz")
class XzFileLoader(_FileLoader):
    """Takes pairs (path, binary stream) of xz files, and yields pairs (path without ``.xz``, decompressed stream).

    ``length`` is what ``len()`` says, -1 for that of the input. A file is closed with the stream made of it.

    State: none of its own. Raises: while iterating, TypeError for items that are no such pairs; reading the stream
    raises EOFError or ``lzma.LZMAError`` for damaged files.
    """

    form, ending = "load_from_xz", ".xz"

    def __init__(self, datapipe: IterDataPipe[tuple[str, Any]], length: int = -1) -> None:
        super().__init__(datapipe, length)

    def opener(self) -> Callable[[Any], Any]:
        import lzma

        return lzma.open
