"""``zip_with_iter`` and ``zip_with_map``: items that belong together by a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.bases import CountingIterator, ItemIterator, OnePerItem
from torchpipe.node.announce import warn_user
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_items
from torchpipe.node.plain import checked_key, plain_key
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns, check_count, check_input, check_map_input

__all__ = ["IterKeyZipper", "MapKeyZipper"]

T = TypeVar("T")
_END: Any = object()


class _ZipWithIterIterator(CountingIterator[Any]):
    node: IterKeyZipper
    keeps_items = True

    def __init__(self, node: IterKeyZipper, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, node.source)
        failures = context.failures  # a reference is found by its key, whatever its position is
        by_key = context if failures is None else replace(context, failures=failures.at_position)
        self.inputs = (*self.inputs, by_key.iterate(node.reference))
        self.key_fn = self.with_retries(node.key_fn)
        self.ref_key_fn = self.key_fn if node.ref_key_fn is None else self.with_retries(node.ref_key_fn)
        self.merge = _pair if node.merge_fn is None else self.with_retries(node.merge_fn)
        self.buffer: dict[Hashable, Any] = {}
        self.warned = False

    def get_state(self) -> dict[str, Any]:
        return {"buffer": self.kept_items([key, item] for key, item in self.buffer.items())}

    def set_state(self, state: dict[str, Any]) -> None:
        pairs = stored_items(state, "buffer", at_most=self.node.buffer_size)
        self.buffer = dict(pairs)
        if len(self.buffer) != len(pairs):
            raise StateError("two references in the state have one key")

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            held = [self._merged(item)]
            del item  # streams live as long as the consumer wants
            yield held.pop()

    def _merged(self, item: Any) -> Any:
        key = checked_key(self.key_fn, item, "key_fn")
        while key not in self.buffer:
            self._take_reference(item, key)
        merged = self.merge(item, self.buffer.pop(key))
        return (key, merged) if self.node.keep_key else merged

    def _take_reference(self, item: Any, key: Any) -> None:
        reference = next(self.inputs[1].items(), _END)
        if reference is _END:
            raise BufferError(
                f"No matching key can be found: the reference has ended, and no item left of it has the key {key!r} of "
                f"{item!r:.200}. Has it been dropped from the buffer? Then raise buffer_size"
            )
        ref_key = checked_key(self.ref_key_fn, reference, "ref_key_fn")
        if ref_key in self.buffer:
            raise ValueError(f"Duplicate key {ref_key!r} in the reference: which of its two items is meant?")
        if self.node.buffer_size is not None and len(self.buffer) >= self.node.buffer_size:
            if not self.warned:
                self.warned = True
                warn_user(
                    f"the buffer of zip_with_iter holds {len(self.buffer)} references, as many as buffer_size allows: "
                    "the oldest ones are dropped, and an item that asks for one will find none",
                    UserWarning,
                )
            close_streams(self.buffer.pop(next(iter(self.buffer))))
        self.buffer[ref_key] = reference

    def close(self) -> None:
        super().close()
        for item in self.buffer.values():
            close_streams(item)
        self.buffer = {}


@functional_datapipe("zip_with_iter")
class IterKeyZipper(OnePerItem[Any]):
    """Pairs each item of the input with the item of ``ref_datapipe`` that has the same key.

    ``key_fn`` tells the key of an item, ``ref_key_fn`` (by default the same) that of a reference. ``merge_fn(item,
    reference)`` makes what is handed out, by default a tuple of both; with ``keep_key`` it is a pair (key, that). The
    order is that of the input. References that come before they are asked for wait in a buffer of ``buffer_size``
    (None: any number); when it is full the oldest one is dropped, with a warning.

    State: the references in the buffer with their keys; that of the functions if they have any.

    Raises: ValueError for a ``buffer_size`` below 1; while iterating, BufferError if an item's key has no reference (it
    may have been dropped), ValueError if two references in the buffer have one key.
    """

    iterator = _ZipWithIterIterator
    pairs = False  # by key, not by position

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        ref_datapipe: IterDataPipe[Any],
        key_fn: Callable[[T], Hashable],
        ref_key_fn: Callable[[Any], Hashable] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[T, Any], Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe)
        check_input("zip_with_iter", ref_datapipe, "ref_datapipe")
        _check_functions(key_fn, merge_fn)
        check_columns("ref_key_fn", key_fn if ref_key_fn is None else ref_key_fn, None)
        self.reference = ref_datapipe
        self.key_fn: Callable[[Any], Hashable] = key_fn
        self.ref_key_fn = ref_key_fn
        self.keep_key = keep_key
        self.buffer_size = None if buffer_size is None else check_count("buffer_size", buffer_size, at_least=1)
        self.merge_fn: Callable[[Any, Any], Any] | None = merge_fn


class _ZipWithMapIterator(ItemIterator[Any]):
    node: MapKeyZipper

    def __init__(self, node: MapKeyZipper, context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.key_fn = self.with_retries(node.key_fn)
        self.merge = _pair if node.merge_fn is None else self.with_retries(node.merge_fn)

    def run(self) -> Iterator[Any]:
        for item in self.source.items():
            held = [self._merged(item)]
            del item  # streams live as long as the consumer wants
            yield held.pop()

    def _merged(self, item: Any) -> Any:
        key = plain_key(self.key_fn(item))
        try:
            other = self.node.table[key]
        except LookupError as error:
            raise KeyError(
                f"{callable_name(self.key_fn)} maps {item!r:.200} to {key!r}, which is not a valid key of the "
                "map-style datapipe"
            ) from error
        merged = self.merge(item, other)
        return (key, merged) if self.node.keep_key else merged


@functional_datapipe("zip_with_map")
class MapKeyZipper(OnePerItem[Any]):
    """Pairs each item of the input with ``map_datapipe[key_fn(item)]``.

    ``merge_fn(item, other)`` makes what is handed out, by default a tuple of both; with ``keep_key`` it is a pair
    (key, that).

    State: that of the functions if they have any. Raises: TypeError if ``map_datapipe`` is not map-style; while
    iterating, KeyError for a key that it does not have.
    """

    iterator = _ZipWithMapIterator
    one_to_one = True

    def __init__(
        self,
        source_iterdatapipe: IterDataPipe[T],
        map_datapipe: MapDataPipe[Any],
        key_fn: Callable[[T], Any],
        merge_fn: Callable[[T, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        super().__init__(source_iterdatapipe)
        check_map_input("zip_with_map", map_datapipe, "map_datapipe")
        _check_functions(key_fn, merge_fn)
        self.table = map_datapipe
        self.key_fn: Callable[[Any], Any] = key_fn
        self.merge_fn: Callable[[Any, Any], Any] | None = merge_fn
        self.keep_key = keep_key


def _check_functions(key_fn: Any, merge_fn: Any) -> None:
    check_columns("key_fn", key_fn, None)
    if merge_fn is not None:
        check_columns("merge_fn", merge_fn, ["item", "reference"])


def _pair(item: Any, other: Any) -> Any:
    return item, other
