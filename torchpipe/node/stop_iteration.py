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
    stream: Any = iter(iterable)
    if type(stream) not in (map, filter):
        given: Iterator[Any] = stream
        return given
    parts: Any = stream.__reduce__()[1]  # what pickle makes it of
    if type(stream) is map:
        return _mapped(*parts)
    return _filtered(*parts)


def _mapped(function: Any, *parts: Any) -> Iterator[Any]:
    for items in zip(*map(stream_of, parts)):
        yield function(*items)


def _filtered(function: Any, part: Any) -> Iterator[Any]:
    for item in stream_of(part):
        if (bool if function is None else function)(item):
            yield item
