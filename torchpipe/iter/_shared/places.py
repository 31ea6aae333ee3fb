"""Where an open file stands, as a state: one integer, and by what another file is known.

Runs wherever its nodes run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.errors import StateError
from torchpipe.formats.places.content import ends_of
from torchpipe.iter._shared.pairs import naming_path
from torchpipe.iter._shared.streams import StreamWrapper, close_stream
from torchpipe.node.iterator import stored_count

__all__ = ["Lines", "PlacedLines", "can_seek", "check_stamp", "go_to_place", "lines_of", "place_in", "stamp_of"]

_LARGEST_PLACE = 1 << 320  # a text file tells five numbers of 64 bits in one


def can_seek(file: Any) -> bool:
    """Can it tell where it stands, and go there?"""
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable()) and callable(getattr(file, "tell", None))


def stamp_of(file: Any) -> list[int | None] | None:
    """By what a file that has changed is known, as plain data: its size and, of a local one, a checksum of its end.

    It is that of the file in which the stream's bytes are stored, an archive or compressed. None where nothing tells:
    of streams of an opener of the user's that have no file descriptor.
    """
    while file is not None:
        ends = ends_of(file)
        if ends is not None:
            return list(ends)
        binary = getattr(file, "buffer", file)  # of text
        size = getattr(getattr(binary, "raw", binary), "size", None)  # of a file that fsspec opens
        if type(size) is int:
            return [size, None]
        file = getattr(file, "parent_stream", None)
    return None


def check_stamp(name: str, saved: Any, stamp: list[int | None] | None) -> None:
    """Raises: StateError if a file with this stamp is another one than that of the state, as far as both know it."""
    if saved is None or stamp is None:
        return
    if not (type(saved) is list and len(saved) == 2 and type(saved[0]) is int):
        raise StateError(f"the state does not say how long {name} was, but {saved!r:.40}")
    if saved[0] != stamp[0]:
        change = f"it had {saved[0]} bytes, and has {stamp[0]} now"
    elif None not in (saved[1], stamp[1]) and saved[1] != stamp[1]:
        change = "it is as long, and ends with other bytes"
    else:
        return
    raise StateError(f"{name} has changed since the state was saved: {change}. Restore it, or begin the epoch anew")


def place_in(file: Any, stamp: list[int | None] | None) -> dict[str, Any]:
    """Where ``file`` stands, for :func:`go_to_place`; ``stamp``: what :func:`stamp_of` said when it was opened."""
    return {"place": file.tell(), "file": stamp}


def go_to_place(file: Any, state: dict[str, Any], stamp: list[int | None] | None, name: str) -> None:
    """Go to where :func:`place_in` said. Raises: StateError if the file has changed, or has no such place."""
    check_stamp(name, state["file"], stamp)
    place = stored_count(state, "place", at_most=_LARGEST_PLACE)
    try:
        file.seek(place)
    except (OSError, MemoryError, OverflowError, ValueError) as error:  # to a place that it has not told
        raise StateError(f"{name} has no place {place}, at which the state stands: is it the same?") from error


class Lines(Iterator[Any]):
    """The lines of an open stream after the first ``skip`` ones; closes it at its end. Errors name its path."""

    def __init__(self, path: str, stream: StreamWrapper, skip: int = 0) -> None:
        self.path = path
        self.stream = stream  # a StreamWrapper closes its file when nobody refers to it
        self._skip = skip
        self._next = getattr(stream, "readline", None) or (lambda: next(stream, b""))

    def __next__(self) -> Any:
        with naming_path(self.path):
            while self._skip and self._next():
                self._skip -= 1
            line = b"" if self._skip else self._next()
        if not line:
            self._skip = 0
            close_stream(self.stream)
            raise StopIteration
        return line


class PlacedLines(Lines):
    """The same of a stream that can seek. State: the place in it, and by what another file is known."""

    def __init__(self, path: str, stream: StreamWrapper, skip: int = 0) -> None:
        super().__init__(path, stream, skip)
        self._stamp = stamp_of(stream)

    def state_dict(self) -> dict[str, Any]:
        return place_in(self.stream, self._stamp) if not self._skip else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "place" in state:
            go_to_place(self.stream, state, self._stamp, self.path)
            self._skip = 0


def lines_of(path: str, stream: StreamWrapper, skip: int) -> Lines:
    """With a state where the stream can seek."""
    kind = PlacedLines if can_seek(stream) and hasattr(stream, "readline") else Lines
    return kind(path, stream, skip)
