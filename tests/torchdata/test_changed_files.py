"""Streams that are read line by line, and their files: which are compared, and what a state says of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.iter.files.test_changed_files import LINES, opened, text
from torchpipe.errors import StateError
from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate


class Piped(io.RawIOBase):
    """A stream of an opener of the user's, without a file descriptor."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = 0) -> int:
        return self.inner.seek(place, whence)

    def readinto(self, buffer: Any) -> int:
        return self.inner.readinto(buffer)


def test_a_stream_that_does_not_say_what_it_reads_from_is_not_compared() -> None:
    def graph(data: bytes) -> Any:
        return IterableWrapper(["x"]).map(lambda path: (path, Piped(data))).readlines(return_path=False)

    iterator = iterate(graph(b"a\nb\nc\n"))
    iterator.drop(1)
    resumed = iterate(graph(b"a\nb\nc\nd\n"))
    resumed.load_state_dict(iterator.state_dict())
    assert list(resumed) == [b"b", b"c", b"d"]


@pytest.mark.parametrize("forged", [3, [1], ["x", 1], [None, None], {}])
def test_forged_states_are_refused(forged: Any, tmp_path: Path) -> None:
    text(tmp_path / "x.txt", LINES)
    iterator = iterate(opened(tmp_path).readlines())
    iterator.drop(1)
    state = iterator.state_dict()
    resumed = iterate(opened(tmp_path).readlines())
    resumed.load_state_dict(state | {"iterator": state["iterator"] | {"file": forged}})
    with pytest.raises(StateError, match="does not say how long"):
        next(resumed)
