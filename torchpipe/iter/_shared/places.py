"""Where an open file stands, as a state: one integer. Runs wherever its nodes run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.errors import StateError
from torchpipe.iter._shared.pairs import naming_path
from torchpipe.iter._shared.streams import StreamWrapper, close_stream
from torchpipe.node.iterator import stored_count

__all__ = ["Lines", "PlacedLines", "can_seek", "go_to_place", "lines_of"]

_LARGEST_PLACE = 1 << 320  # a text file tells five numbers of 64 bits in one


def can_seek(file: Any) -> bool:
    """Can it tell where it stands, and go there?"""
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable()) and callable(getattr(file, "tell", None))


def go_to_place(file: Any, state: dict[str, Any]) -> None:
    """Go to ``state["place"]``, which the file once told. Raises: StateError if it has no such place."""
    place = stored_count(state, "place", at_most=_LARGEST_PLACE)
    try:
        file.seek(place)
    except (OSError, MemoryError, OverflowError, ValueError) as error:  # to a place that it has not told
        raise StateError(f"the file has no place {place}, at which the state stands: is it the same?") from error


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
    """The same of a stream that can seek. State: the place in it."""

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.stream.tell()} if not self._skip else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "place" in state:
            go_to_place(self.stream, state)
            self._skip = 0


def lines_of(path: str, stream: StreamWrapper, skip: int) -> Lines:
    """With a state where the stream can seek."""
    kind = PlacedLines if can_seek(stream) and hasattr(stream, "readline") else Lines
    return kind(path, stream, skip)
