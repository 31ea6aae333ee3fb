"""Nodes with which a graph begins, whose data are in memory: ``IterableWrapper``, which takes data or any iterable, and
``to_iter_datapipe``, which reads a map-style node in order.

There are four ways to go to a position, chosen by what ``IterableWrapper`` is given: sequences by index, iterables with
state by their state, iterators that can be read once by replay if nothing has read them yet, and all else by replay.
"""

from __future__ import annotations

import array
import collections
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import StateError
from torchpipe.indexed.by_index import ByIndex
from torchpipe.indexed.keys import KeysIterator, check_keys
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.generator_seeding import SeededGenerators
from torchpipe.node.iterator import MayReplay, NodeIterator, Positions, is_stateful, stored_count
from torchpipe.node.mutation_check import MutationCheck
from torchpipe.node.stop_iteration import stream_of
from torchpipe.node.traits import private_copy
from torchpipe.node.user_warnings import warn_user
from torchpipe.state.copying import copy_item, holds_mutable

__all__ = ["IterableWrapper", "MapToIterConverter"]

T = TypeVar("T")


@functional_datapipe("to_iter_datapipe", on="map")
class MapToIterConverter(IterDataPipe[T]):
    """Reads the keys ``indices`` of a map-style node in order, by default ``range(len(datapipe))``.

    A ``sharding_filter`` after it, ``shuffle`` between them or not, makes each shard read only the keys that it keeps.

    State: one integer. Resuming costs nothing, however far on.

    Raises: TypeError if ``datapipe`` is not map-style or ``indices`` cannot be indexed (a generator, say).
    """

    by_index = True
    fingerprint_data = ("indices",)

    def __init__(self, datapipe: MapDataPipe[T], indices: Sequence[Any] | None = None) -> None:
        check_keys("to_iter_datapipe", datapipe, indices)
        self.source = datapipe
        self.indices = indices

    def __len__(self) -> int:
        return len(self.source if self.indices is None else self.indices)

    def iterate(self, context: Context) -> NodeIterator[T]:
        keys = range(len(self)) if self.indices is None else self.indices
        return KeysIterator(self, context, self.source, len(self), lambda: keys)


_END: Any = object()
_INDEXED = (Sequence, np.ndarray, torch.Tensor, array.array)
_DATA = (tuple, range, np.ndarray, torch.Tensor, array.array)
_NUMBERS = (int, float, bool, type(None))
_LISTED = (list, dict, collections.deque, MappingView)  # listed anew for each pass, which costs a pointer an item


class IterableWrapper(IterDataPipe[T]):
    """Yields the items of ``iterable``, which should be able to be iterated again and again.

    With ``deepcopy`` every pass gets copies of the items, made as they are handed out, so that no function that changes
    an item in place can change the data for later passes; adding to a list or taking from it does not disturb a
    running pass. With ``deepcopy=False`` the items themselves are handed out. An object with an ``__iter__`` is copied
    for each pass as nodes are: with its generators and counters as they were given. An iterable with
    ``state_dict``/``load_state_dict`` is copied as a whole for each pass instead. What cannot be copied is used itself.

    State: for sequences (anything indexed from 0: list, tuple, range, array, tensor, classes with ``__len__`` and
    ``__getitem__`` but no ``__iter__``) one integer; for iterables that, or whose iterators, have a state, that state;
    for others the position, reached by replay, which a :class:`~torchpipe.ReplayWarning` announces. An iterator or
    generator serves a single pass.

    Raises: TypeError for an object that is not iterable, for sets, whose order differs between processes, and for data
    frames, which iterate their columns; RuntimeError, while iterating, if an iterator that can be read once is read
    again.
    """

    fingerprint_data = ("iterable",)
    fingerprint_ignores = ("_once",)

    def __init__(self, iterable: Iterable[T], deepcopy: bool = True) -> None:
        if isinstance(iterable, set | frozenset):
            raise TypeError(
                "IterableWrapper cannot wrap a set: its order differs between processes, so shards would overlap and "
                "no position could be found again. Pass sorted(...) or list(...) instead"
            )
        if type(iterable).__name__ == "DataFrame" and hasattr(iterable, "columns"):
            raise TypeError(
                "IterableWrapper cannot tell what of a DataFrame to yield: iterating one gives its columns. Give it "
                'the rows, df.to_dict("records") or list(df.itertuples(index=False)), or list(df.columns)'
            )
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            advice = ". Give what it returns, or an object whose __iter__ calls it" if callable(iterable) else ""
            raise TypeError(
                f"IterableWrapper needs an iterable, got {iterable!r} of type {type(iterable).__name__}{advice}"
            )
        self.iterable = iterable
        self.deepcopy = deepcopy
        self._once = _Once() if isinstance(iterable, Iterator) and not is_stateful(iterable) else None

    def made_of(self) -> Mapping[str, Any]:
        return {"iterable": self.iterable, "deepcopy": self.deepcopy}

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    @property
    def by_index(self) -> bool:  # type: ignore[override]
        """True if it is read by index, so that a shard does not make items that others keep."""
        return not is_stateful(self.iterable) and _is_indexed(self.iterable)

    def iterate(self, context: Context) -> NodeIterator[T]:
        if isinstance(self.iterable, TorchIterDataPipe):
            return context.iterate(self.iterable)
        return _SequenceIterator(self, context) if self.by_index else _IterableIterator(self, context)


class _Once:
    """Belongs to an iterator that can be read once: notes whether a pass has begun to. The node never changes."""

    taken = False


def _is_indexed(value: Any) -> bool:
    """True if indexing from 0 gives the items that iterating gives. By type only: a DataFrame's index gives columns."""
    if isinstance(value, _INDEXED + _LISTED):
        return True
    kind = type(value)
    if hasattr(kind, "__getitems__") and hasattr(kind, "__len__"):
        return True  # reading several by index is what torch's loader asks of map-style data
    return not hasattr(kind, "__iter__") and hasattr(kind, "__len__") and not isinstance(value, Mapping)


def _private(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # objects refuse in many ways
        warn_user(
            f"IterableWrapper cannot copy its {type(value).__name__} ({type(error).__name__}: {error}): all passes "
            "share it, and two at a time disturb each other",
            UserWarning,
        )
        return value


def _is_users(value: Any) -> bool:
    """True for an object whose attributes a pass may change, and that can be iterated again."""
    return hasattr(value, "__dict__") and not isinstance(value, Iterator | type)


class _SequenceIterator(ByIndex[T]):
    """Goes to a position by index. Sequences of values that cannot change are read by their own iterators."""

    node: IterableWrapper[T]

    def __init__(self, node: IterableWrapper[T], context: Context) -> None:
        items = node.iterable
        own = None if isinstance(items, (*_DATA, *_LISTED)) else SeededGenerators(items, warn=context.warn_once)
        super().__init__(node, context, len(node), own)
        self._held: Any = None  # the items as they are when the pass begins
        self._rest: Any = None  # an iterator that tells how many items it has left
        self._first = self._rest_length = 0  # of what ``_rest`` began with: the index of its first item, its length

    @property
    def by_position(self) -> Positions | None:
        items = self.node.iterable
        # Numbers are as small as their positions, and quicker at hand.
        if type(items) is range or (type(items) in (list, tuple) and type(next(iter(items), "")) in _NUMBERS):
            return Positions(self, self.stride)
        return super().by_position

    def read_at(self) -> Callable[[int], Any]:
        items = self._items()
        return (lambda index: copy_item(items[index])) if self.node.deepcopy else (lambda index: items[index])

    def reader(self) -> Callable[[int], Any]:
        items = self._items()
        plain = type(items) is tuple and not (self.node.deepcopy and holds_mutable(items))
        return items.__getitem__ if plain else super().reader()

    def give_keys(self) -> None:
        if not isinstance(self.node.iterable, (*_LISTED, tuple)):  # whose items are at hand
            self._held = range(len(self.node))

    def _items(self) -> Any:
        if self._held is None:
            items: Any = self.node.iterable
            if isinstance(items, _LISTED) and (self.node.deepcopy or not isinstance(items, list)):
                items = tuple(items)  # type: ignore[arg-type]  # a pass is not disturbed by what is added to a list or taken from it
            self._held = items
        return self._held

    @property
    def position(self) -> int:
        """Items up to the last one yielded, those left out included."""
        if self._rest is not None:
            taken = self._rest_length - self._rest.__length_hint__()
            if taken:
                return int(self._first + (taken - 1) * self._parts + 1)
        return self._passed

    def run(self) -> Iterator[T]:
        items = self._items()
        self._first = self.first_from(self._passed)
        if self._yields_positions:
            items = range(len(items))
        if type(items) is range or (type(items) is tuple and not (self.node.deepcopy and holds_mutable(items))):
            rest = items[self._first :: self._parts]
            self._rest_length, self._rest = len(rest), iter(rest)
            return self._rest  # type: ignore[no-any-return]
        return self._by_index(items)

    def _by_index(self, items: Any) -> Iterator[T]:
        read = self.reader()
        for index in range(self._first, len(items), self._parts):
            self._passed = index + 1
            yield read(index)


class _IterableIterator(MayReplay[T]):
    """Goes to a position by the state of the iterator, else by that of the iterable, else by replay."""

    node: IterableWrapper[T]

    def __init__(self, node: IterableWrapper[T], context: Context) -> None:
        super().__init__(node, context)
        self.position = 0
        self._stateful = is_stateful(node.iterable)
        self._iterable: Any = _private(node.iterable) if self._stateful and node.deepcopy else node.iterable
        self._kept: MutationCheck | None = None  # of a pass's own
        if node.deepcopy and not self._stateful and _is_users(node.iterable):
            self._iterable = private_copy(node.iterable)
            self._kept = MutationCheck(self._iterable, node.iterable, at_most=8)
        self._iterator: Any = None
        self._loaded: dict[str, Any] = {"position": 0}
        self._ended = False

    @property
    def replayed(self) -> bool:  # type: ignore[override]
        """True if what is wrapped has no state and is resumed by replay."""
        return not self._stateful and (self.node._once is not None or not is_stateful(self._iterator))

    def _open(self) -> Any:
        once = self.node._once
        if once is not None:
            if once.taken:
                raise RuntimeError(f"{self._read_once()}, and was read already")
            once.taken = True
        return stream_of(self._iterable)

    def _read_once(self) -> str:
        return (
            f"IterableWrapper was given {self._iterable!r}, which can be read once (give it a list, or an object whose "
            "__iter__ starts anew)"
        )

    def get_state(self) -> dict[str, Any]:
        if not self.pass_engine.is_begun:
            return copy.deepcopy(self._loaded)
        if self._ended:  # of itself: an iterable may begin anew in its own state, as the next pass will find it
            ended = {"position": self.position, "ended": True}
            used_in_place = self._stateful and not self.node.deepcopy
            return ended | {"left": copy.deepcopy(self._iterable.state_dict())} if used_in_place else ended
        if self.node._once is None and is_stateful(self._iterator):
            return {"position": self.position, "iterator": copy.deepcopy(self._iterator.state_dict())}
        if self._stateful:
            return {"position": self.position, "iterable": copy.deepcopy(self._iterable.state_dict())}
        return {"position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position = stored_count(state, "position")
        self._loaded = copy.deepcopy(state)
        if "iterator" in state:
            self._iterator = self._open()
            self._iterator.load_state_dict(copy.deepcopy(state["iterator"]))
        elif "iterable" in state:
            self._iterable.load_state_dict(copy.deepcopy(state["iterable"]))
        elif "ended" in state:
            self._ended = True
            if "left" in state and self._stateful and not self.node.deepcopy:
                self._iterable.load_state_dict(copy.deepcopy(state["left"]))
        elif self.position and self.node._once is not None and self.node._once.taken:
            raise StateError(f"{self._read_once()}, and was read already: item {self.position} cannot be reached")

    def to_replay(self) -> tuple[str, int]:
        name = f"the iterable {type(self._iterable).__name__}"
        return name, 0 if self._ended or not self.replayed else self.position

    def run(self) -> Iterator[T]:
        if self._ended:
            return
        replay = 0 if self._loaded.keys() & {"iterator", "iterable"} else self.position
        if self._iterator is None:
            self._iterator = self._open()
        self.context.make_again(
            self._iterator,
            replay,
            lambda done: StateError(f"the iterable in IterableWrapper ended after {done} of {replay} items to replay"),
        )
        deep = self.node.deepcopy and not self._stateful and self.node._once is None
        while (item := next(self._iterator, _END)) is not _END:  # not for: another iter() might set it back
            self.position += 1
            yield copy_item(item) if deep else item
        self._ended = True
        if self._kept is not None:
            self._kept.warn_of_changes(f"the iterable {type(self._iterable).__name__}")

    def close(self) -> None:
        super().close()
        close = getattr(self._iterator, "close", None)
        if close is not None and self._iterator is not self._iterable:
            close()
        self._iterator = None
