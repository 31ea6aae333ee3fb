"""The result of a function for one item, as a list or as an iterator that knows its position."""

from __future__ import annotations

import collections
import io
from collections.abc import Iterator, MappingView, Sequence
from typing import Any

import numpy as np
import torch

from torchpipe.formats.storage.content import Content
from torchpipe.formats.storage.streams import StreamWrapper
from torchpipe.formats.text import Lines
from torchpipe.node.ends import stream_of
from torchpipe.node.iterator import stored_count
from torchpipe.node.traits import callable_name

__all__ = ["positioned"]

# Containers that have all their items at hand. Sequences of other types may load each item when it is asked for.
_HELD = (list, tuple, str, bytes, range, dict, collections.deque, MappingView, np.ndarray, torch.Tensor, set, frozenset)
# Open files of just these types: readline() gives what iterating gives, and they can tell where they stand meanwhile.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.StringIO, io.BytesIO)


def positioned(node: str, result: Any, fn: object) -> Any:
    """``result``, which ``fn`` returned to ``node``: a list if it is a container, else an iterator, with a state if
    there is a position to go to. Raises: TypeError for a result that is not iterable.
    """
    if isinstance(result, _HELD):
        return list(result)  # type: ignore[arg-type]
    if not (hasattr(result, "__iter__") or hasattr(result, "__getitem__")):
        raise TypeError(
            f"{node} needs something iterable, {callable_name(fn)} returned {result!r} of type "
            f"{type(result).__name__}: return an empty list for an item that gives nothing"
        )
    file = result.file_obj if isinstance(result, StreamWrapper) else result
    if type(file) in _FILES and file.seekable():
        return Lines(Content(str(getattr(result, "name", "the file")), None, opened=result))
    own_iter = getattr(type(result), "__iter__", None)
    if own_iter is None or own_iter is Sequence.__iter__:
        return _Indexed(result)
    return stream_of(result)


class _Indexed(Iterator[Any]):
    """The items of what is read by index: as many as ``len()`` says, or without it until an IndexError, as Python
    itself does. State: the index.
    """

    def __init__(self, items: Any) -> None:
        self._items = items
        self._index = 0
        self._length = len(items) if hasattr(type(items), "__len__") else None

    def __next__(self) -> Any:
        if self._index == self._length:
            raise StopIteration
        try:
            item = self._items[self._index]
        except IndexError as error:
            if self._length is None:
                raise StopIteration from None
            kind = type(self._items).__name__
            error.add_note(f"{kind} has {self._length} items, as its len() says, and item {self._index} raised this")
            raise
        except StopIteration as error:
            kind = type(self._items).__name__
            raise RuntimeError(f"item {self._index} of {kind} raised StopIteration, which is no end") from error
        self._index += 1
        return item

    def state_dict(self) -> dict[str, int]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._index = stored_count(state, "index")
