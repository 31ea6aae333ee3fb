"""The end of a stream of the user's, which no function that runs in it can make. Runs in every process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["stream_of"]


def stream_of(iterable: Any) -> Iterator[Any]:
    """``iter(iterable)``; an error if a function of a ``map`` or ``filter`` there raises StopIteration.

    To these a StopIteration is the end of what they read, so that the rest of the items would be missing in silence.
    A generator makes a RuntimeError of it.
    """
    stream = iter(iterable)
    if type(stream) is map:
        function, *parts = stream.__reduce__()[1]
        return (function(*items) for items in zip(*map(stream_of, parts)))
    if type(stream) is filter:
        function, part = stream.__reduce__()[1]
        return (item for item in stream_of(part) if (item if function in (None, bool) else function(item)))
    return stream
