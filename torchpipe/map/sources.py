"""Nodes with which a map-style graph begins.

- ``to_map_datapipe``: read an iterable node by key.
- ``SequenceWrapper``: begin a map-style pipeline with a sequence or mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import GraphError
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.function_results import as_key
from torchpipe.node.host import Host
from torchpipe.node.traits import divides, node_name, traits_of, walk
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_columns
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state.copying import copy_item

__all__ = ["IterToMapConverter", "SequenceWrapper"]

_KEY = (0, 0x70_3A9)  # of the global random states: who reads it, and when, is of no account


class _Loaded:
    """The items read of ``source``; None before."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.items: dict[Any, Any] | None = None


@functional_datapipe("to_map_datapipe", on="iter")
class IterToMapConverter(MapDataPipe[Any]):
    """Reads all of ``datapipe`` when the first item is asked for, and keeps it: pairs (key, value), or what
    ``key_value_fn`` makes such pairs of. Hands out copies of the values, if these can be changed in place.

    The pass over ``datapipe`` has a seed and global random states of its own, the same everywhere. What was read before
    the graph goes to worker processes goes with it; else each reads for itself.

    Raises: TypeError if ``datapipe`` is no iterable node or ``key_value_fn`` no function; GraphError if it is divided
    among shards; while reading, TypeError and ValueError for what are no pairs; IndexError for a key that is not there.
    """

    def __init__(self, datapipe: IterDataPipe[Any], key_value_fn: Callable[[Any], Any] | None = None) -> None:
        if not isinstance(datapipe, TorchIterDataPipe):
            raise TypeError(f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}")
        if key_value_fn is not None:
            check_columns("key_value_fn", key_value_fn, None)
        for node in walk(datapipe):
            if divides(node) or traits_of(node).dispatches:
                raise GraphError(
                    f"{node_name(node)} stands before to_map_datapipe(), which reads everything by itself, whole in "
                    "every shard: divide behind it, to_map_datapipe().to_iter_datapipe().sharding_filter()"
                )
        self.source = datapipe
        self.key_value_fn = key_value_fn
        self._loaded = _Loaded(datapipe)

    def made_of(self) -> Mapping[str, Any]:
        return {"datapipe": self.source, "key_value_fn": self.key_value_fn}

    def _items(self) -> dict[Any, Any]:
        if self._loaded.source is not self.source:  # a copy of this node, that reads another one
            self._loaded = _Loaded(self.source)
        if self._loaded.items is None:
            self._loaded.items = GlobalRandom(_KEY).within(self._read)
        return self._loaded.items

    def _read(self) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        context = Context.for_graph(self.source, seed=0, host=Host(threads=False))  # which would not have those states
        with context.iterate(self.source) as stream:
            for item in stream:
                key, value = self._pair(item)
                key = as_key(key, "to_map_datapipe")
                if key in items:
                    warn_user(f"Found duplicate key {key!r}: the last one counts. Check key_value_fn", UserWarning)
                items[key] = value
        return items

    def _pair(self, item: Any) -> Any:
        pair = item if self.key_value_fn is None else self.key_value_fn(item)
        try:
            length = len(pair)
        except TypeError:
            raise TypeError(
                f"Cannot convert dictionary update element {type(pair)} ({pair!r:.200}) to a sequence: give "
                "to_map_datapipe a key_value_fn that makes pairs (key, value)"
            ) from None
        if length != 2:
            raise ValueError(f"dictionary update sequence element has length {length}, 2 is required: {pair!r:.200}")
        return pair

    def __getitem__(self, index: Any) -> Any:
        try:
            return copy_item(self._items()[as_key(index, "to_map_datapipe")])
        except KeyError:
            raise IndexError(f"Index {index} is invalid for IterToMapConverter.") from None

    @property
    def counts_by_reading(self) -> bool:
        """True if ``len()`` would read all of the input: a progress bar and the like then do without."""
        return self._loaded.items is None and self._length_of_input() is None

    def _length_of_input(self) -> int | None:
        try:
            return len(self.source)
        except (TypeError, NotImplementedError):
            return None

    def __len__(self) -> int:
        if self._loaded.items is None:
            if (length := self._length_of_input()) is not None:
                return length
            warn_user("len() of to_map_datapipe() reads all of its input, which does not know its length", UserWarning)
        return len(self._items())


T = TypeVar("T")


class SequenceWrapper(MapDataPipe[T]):
    """Reads items of ``sequence`` by index, or of a mapping by key.

    With ``deepcopy`` each item is copied when it is read, so that no function can change the data by changing an item
    in place; what cannot be copied is handed out itself. The sequence is used as it is, so do not change it.

    Raises: TypeError if ``sequence`` has no ``__getitem__`` or ``__len__``.
    """

    fingerprint_data = ("sequence",)

    def __init__(self, sequence: Sequence[T] | Mapping[Any, T], deepcopy: bool = True) -> None:
        if not (hasattr(sequence, "__getitem__") and hasattr(sequence, "__len__")):
            raise TypeError(
                f"SequenceWrapper needs a sequence or mapping, got {sequence!r} of type {type(sequence).__name__}: "
                "use torchpipe.iter.IterableWrapper for what can only be iterated"
            )
        self.sequence = sequence
        self.deepcopy = deepcopy

    def __getitem__(self, index: Any) -> T:
        item = self.sequence[index]
        return copy_item(item) if self.deepcopy else item

    def __len__(self) -> int:
        return len(self.sequence)
