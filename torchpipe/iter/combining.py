"""Several streams into one.

- ``concat``: one input after the other.
- ``zip_with_iter`` and ``zip_with_map``: items that belong together by a key.
- ``mux`` and ``mux_longest``: one item of each input in turn.
- ``zip``: tuples of one item of each input.
- ``zip_longest``: tuples of one item of each input, until all have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

from torchpipe.errors import StateError
from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.bases import CountingIterator, ItemIterator, OnePerItem, SeveralInputs
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, MapDataPipe, functional_datapipe
from torchpipe.node.function_results import checked_key, plain_key
from torchpipe.node.iterator import NodeIterator, Positions, stored_count, stored_items
from torchpipe.node.traits import callable_name
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_columns, check_count, check_input, check_map_input
from torchpipe.state.copying import copy_item, holds_mutable

__all__ = ["Concater", "IterKeyZipper", "MapKeyZipper", "Multiplexer", "MultiplexerLongest", "Zipper", "ZipperLongest"]

T = TypeVar("T")


class _ConcatIterator(CountingIterator[T]):
    reading = 0
    _numbered = False  # pairs with positions, not items

    def get_state(self) -> dict[str, Any]:
        return {"reading": self.reading}

    def set_state(self, state: dict[str, Any]) -> None:
        self.reading = stored_count(state, "reading", at_most=len(self.inputs) - 1)

    @property
    def by_position(self) -> Positions | None:
        """Positions are pairs: the number of the input, a position of that."""
        parts = [part for item in self.inputs if (part := item.by_position) is not None and part.begin is not None]
        if len(parts) < len(self.inputs):
            return None

        def begin() -> None:
            self._numbered = True
            for part in parts:
                part.taken()

        def reader() -> Callable[[Any], Any]:
            read = [part.reader() for part in parts]
            return lambda pair: read[pair[0]](pair[1])

        def holds(pair: Any) -> bool:
            if not (isinstance(pair, list | tuple) and len(pair) == 2 and type(pair[0]) is int):
                return False
            return 0 <= pair[0] < len(parts) and parts[pair[0]].holds(pair[1])

        return Positions(self, None, begin, reader, holds)

    def run(self) -> Iterator[Any]:
        for number, item in enumerate(self.inputs):
            if number >= self.reading:
                self.reading = number
                if self._numbered:
                    for position in item.items():
                        yield number, position
                else:
                    yield from item.items()


@functional_datapipe("concat")
class Concater(SeveralInputs[T]):
    """All items of the first input, then all of the second one, and so on.

    State: which input is being read.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _ConcatIterator
    pairs = False
    selects = True

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)


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


class _MuxIterator(NodeIterator[T]):
    keeps_items = True

    left: list[T]

    def __init__(self, node: Multiplexer[T], context: Context, *inputs: IterDataPipe[T]) -> None:
        super().__init__(node, context, *inputs)
        self.left = []  # of the round, the next one last

    def get_state(self) -> dict[str, Any]:
        return {"left": self.kept_items(self.left)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_items(state, "left", at_most=len(self.inputs) - 1)

    def run(self) -> Iterator[T]:
        while True:
            while self.left:
                yield self.left.pop()
            items = [next(item.items(), _END) for item in self.inputs]
            if any(item is _END for item in items):
                return
            self.left = items[::-1]
            del items


@functional_datapipe("mux")
class Multiplexer(SeveralInputs[T]):
    """The first items of all inputs, then the second ones of all ..., until the shortest input ends.

    An item of each input is pulled before the first of a round is handed out, so that rounds are whole: what was pulled
    for one that is not is left out.

    State: what is left of the round.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _MuxIterator
    pairs = False

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes) * len(self.datapipes)


class _MuxLongestIterator(NodeIterator[T]):
    def __init__(self, node: MultiplexerLongest[T], context: Context, *inputs: IterDataPipe[T]) -> None:
        super().__init__(node, context, *inputs)
        self.turn = 0
        self.ended = [False] * len(inputs)

    def get_state(self) -> dict[str, Any]:
        return {"turn": self.turn, "ended": list(self.ended)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.turn = stored_count(state, "turn", at_most=len(self.inputs) - 1)
        self.ended = stored_items(state, "ended")
        if len(self.ended) != len(self.inputs) or not all(type(flag) is bool for flag in self.ended):
            raise StateError(
                f"the state says of {len(self.ended)} inputs whether they have ended, not of {len(self.inputs)}"
            )

    def run(self) -> Iterator[T]:
        while not all(self.ended):
            turn = self.turn
            self.turn = (turn + 1) % len(self.inputs)
            if not self.ended[turn]:
                held = [next(self.inputs[turn].items(), _END)]
                if held[0] is _END:
                    self.ended[turn] = True
                else:
                    yield held.pop()


@functional_datapipe("mux_longest")
class MultiplexerLongest(SeveralInputs[T]):
    """The first items of all inputs, then the second ones of all ..., without those that have ended, until all have.

    State: whose turn it is, and which have ended.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _MuxLongestIterator
    pairs = False

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)


class _ZipIterator(ItemIterator[tuple[Any, ...]]):
    node: Zipper
    uneven = False  # an input has ended before another one, and strict says that they do not

    def leave_out(self) -> bool:
        return not self.uneven

    def run(self) -> Iterator[tuple[Any, ...]]:
        streams = [item.items() for item in self.inputs]
        if not self.node.strict:
            yield from zip(*streams)
            return
        while True:
            held = [[next(stream, _END) for stream in streams]]
            ended = [number for number, item in enumerate(held[0]) if item is _END]
            if len(ended) == len(streams):
                return
            if ended:
                self.uneven = True
                going = next(number for number in range(len(streams)) if number not in ended)
                raise ValueError(
                    f"zip(strict=True): input {ended[0]} has ended, and input {going} has not, in shard "
                    f"{self.context.shard} of {self.context.num_shards}. Leave strict out to end with the shortest"
                )
            yield tuple(held.pop())


@functional_datapipe("zip")
class Zipper(SeveralInputs[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the shortest input ends.

    When an input ends, those before it have been asked for one item more, as with Python's ``zip``.

    With ``strict`` it is an error that they do not end together (without it, what the longer ones have left is never
    seen, as in torch).

    State: none of its own.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node; with ``strict``, ValueError
    while iterating.
    """

    iterator = _ZipIterator
    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any], strict: bool = False) -> None:
        super().__init__(*datapipes)
        self.strict = strict

    def __len__(self) -> int:
        return min(len(datapipe) for datapipe in self.datapipes)


_MISSING: Any = object()


class _ZipLongestIterator(ItemIterator[tuple[Any, ...]]):
    node: ZipperLongest

    def run(self) -> Iterator[tuple[Any, ...]]:
        streams, fill = [item.items() for item in self.inputs], self.node.fill_value
        if not holds_mutable([fill]):
            yield from zip_longest(*streams, fillvalue=fill)
            return
        for items in zip_longest(*streams, fillvalue=_MISSING):
            held = [tuple([copy_item(fill) if item is _MISSING else item for item in items])]
            del items
            yield held.pop()


@functional_datapipe("zip_longest")
class ZipperLongest(SeveralInputs[tuple[Any, ...]]):
    """Tuples of the first items of all inputs, then of the second ones ..., until the longest input ends.

    ``fill_value`` stands in the places of those that have ended: a copy in each, if it can be changed in place.

    State: none of its own. Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    iterator = _ZipLongestIterator
    one_to_one = True

    def __init__(self, *datapipes: IterDataPipe[Any], fill_value: Any = None) -> None:
        super().__init__(*datapipes)
        self.fill_value = fill_value

    def __len__(self) -> int:
        return max(len(datapipe) for datapipe in self.datapipes)
