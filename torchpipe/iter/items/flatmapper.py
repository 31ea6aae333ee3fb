"""``flatmap``: a function makes many items of one. Runs wherever its shard runs."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable, Iterable, Iterator, MappingView, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch

from torchpipe.iter._columns import with_columns
from torchpipe.iter._expanding import ExpandingIterator
from torchpipe.iter._places import go_to_place
from torchpipe.iter._streams import StreamWrapper
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_input

__all__ = ["FlatMapper"]

T = TypeVar("T")
R = TypeVar("R")

# Containers that have all their items at hand. Sequences of other types may load each item when it is asked for.
_HELD = (list, tuple, str, bytes, range, dict, collections.deque, MappingView, np.ndarray, torch.Tensor, set, frozenset)
# Open files of just these types, whose lines readline() gives as iterating does.
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.StringIO, io.BytesIO)


def _unchanged(*parts: Any) -> Any:
    return parts[0] if len(parts) == 1 else parts


@functional_datapipe("flatmap")
class FlatMapper(IterDataPipe[R]):
    """Applies ``fn`` to every item and hands out the items of its results, one after the other.

    Results may be containers or iterators, also endless ones. Without ``fn`` the items themselves are taken apart. With
    ``input_col`` (an index or key, or a list of them) ``fn`` is called with those parts of the item; without ``fn``,
    one part is taken apart, several are handed out one after the other.

    State: after a container, what is left of it. Within an iterator, the state of the input before the item, the global
    random states, and where the iterator stands: ``fn`` is called again, so it should neither change its argument nor
    share global random numbers with other functions. An iterator with ``state_dict`` and ``load_state_dict`` goes there
    at once, and so do sequences and open files that can seek. Of others, generators say, the results handed out are
    made again and dropped, which a :class:`~torchpipe.ReplayWarning` announces with their number. It has no length.

    Raises: TypeError if ``fn`` is no function or, while iterating, returns nothing iterable.
    """

    thins = True

    at_hand = False  # an iterator that fn returns may wait, for what the consumer does

    @overload
    def __init__(self, datapipe: IterDataPipe[Iterable[R]]) -> None: ...
    @overload
    def __init__(self: FlatMapper[Any], datapipe: IterDataPipe[Any], *, input_col: Any) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], Iterable[R]]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[Any], fn: Callable[..., Iterable[R]], input_col: Any) -> None: ...

    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Iterable[R]] | None = None, input_col: Any = None
    ) -> None:
        check_input("flatmap", datapipe)
        check_columns("fn", _unchanged if fn is None else fn, input_col)
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col

    def iterate(self, context: Context) -> NodeIterator[R]:
        return _FlatMapIterator(self, context)


class _FlatMapIterator(ExpandingIterator[R]):
    def __init__(self, node: FlatMapper[R], context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        self.fn = self.adopt(_unchanged if node.fn is None else node.fn)
        self.call = with_columns(self.fn, node.input_col)

    def expand(self, item: Any) -> list[R] | Iterator[R]:
        result = self.call(item)
        if isinstance(result, _HELD):
            return list(result)  # type: ignore[arg-type]
        if not (hasattr(result, "__iter__") or hasattr(result, "__getitem__")):
            raise TypeError(
                f"flatmap needs something iterable, {callable_name(self.fn)} returned {result!r} of type "
                f"{type(result).__name__}: return an empty list for an item that gives nothing"
            )
        return _positioned(result)


def _positioned(result: Any) -> Iterator[Any]:
    """An iterator over ``result``, with a state if there is a position to go to."""
    file = result.file_obj if isinstance(result, StreamWrapper) else result
    if type(file) in _FILES and file.seekable():
        return _Lines(file, result)
    own_iter = getattr(type(result), "__iter__", None)
    if own_iter is None or own_iter is Sequence.__iter__:
        return _Indexed(result)
    return iter(result)


class _Indexed(Iterator[Any]):
    """The items of what is read by index until an IndexError, as Python itself does. State: the index."""

    def __init__(self, items: Any) -> None:
        self._items = items
        self._index = 0

    def __next__(self) -> Any:
        try:
            item = self._items[self._index]
        except IndexError:
            raise StopIteration from None
        self._index += 1
        return item

    def state_dict(self) -> dict[str, int]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._index = stored_count(state, "index")


class _Lines(Iterator[Any]):
    """The lines of an open file, read so that it can tell where it stands. State: that place."""

    def __init__(self, file: Any, owner: Any) -> None:
        self._file = file
        self._owner = owner  # a StreamWrapper closes its file when nobody refers to it

    def __next__(self) -> Any:
        line = self._file.readline()
        if not line:
            raise StopIteration
        return line

    def state_dict(self) -> dict[str, int]:
        return {"place": self._file.tell()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        go_to_place(self._file, state)
