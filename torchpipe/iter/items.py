"""One item after the other.

- ``enumerate``: number the items.
- ``filter``: keep the items that a function says yes to.
- ``map``: apply a function to every item.
- ``random_map``: apply a function that draws random numbers to every item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, overload

import numpy as np
import torch

from torchpipe.formats.storage.streams import close_streams
from torchpipe.iter._shared.bases import (
    CountingIterator,
    ItemIterator,
    OneInput,
    OnePerItem,
    apply_to_columns,
    single_output,
    with_columns,
)
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.function_results import plain
from torchpipe.node.iterator import stored_count
from torchpipe.node.traits import callable_name
from torchpipe.node.validate import check_columns
from torchpipe.randomness.seeds import ItemStreams, stored_key

__all__ = ["Enumerator", "Filter", "Mapper", "RandomMapper"]

T = TypeVar("T")


class _EnumerateIterator(CountingIterator[tuple[int, T]]):
    def __init__(self, node: Enumerator[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.number = node.starting_index

    def get_state(self) -> dict[str, Any]:
        return {"number": self.number}

    def set_state(self, state: dict[str, Any]) -> None:
        if type(state["number"]) is not int:
            raise TypeError("number is no integer")
        self.number = state["number"]

    def run(self) -> Iterator[tuple[int, T]]:
        for item in self.source.items():
            number = self.number
            self.number = number + 1
            yield number, item


@functional_datapipe("enumerate")
class Enumerator(OnePerItem[tuple[int, T]]):
    """Pairs ``(number, item)``, numbered from ``starting_index``. After ``sharding_filter`` each shard counts alone.

    State: the next number.
    """

    iterator = _EnumerateIterator

    def __init__(self, source_datapipe: IterDataPipe[T], starting_index: int = 0) -> None:
        super().__init__(source_datapipe)
        starting_index = plain(starting_index)
        if isinstance(starting_index, bool) or not isinstance(starting_index, int):
            raise TypeError(f"starting_index must be an integer, got {starting_index!r}")
        self.starting_index = starting_index


class _FilterIterator(ItemIterator[T]):
    def __init__(self, node: Filter[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.filter_fn = self.with_retries(node.filter_fn)
        self.wanted = with_columns(self.filter_fn, node.input_col)

    def run(self) -> Iterator[T]:
        wanted = self.wanted
        for item in self.source.items():
            answer = wanted(item)
            if answer is True or (answer is not False and self._truth(answer)):
                yield item
            else:
                close_streams(item)

    def _truth(self, answer: Any) -> bool:
        found = plain(answer.reshape(()) if isinstance(answer, torch.Tensor) and answer.numel() == 1 else answer)
        if type(found) is bool:
            return found
        raise ValueError(
            f"filter_fn must return True or False, {callable_name(self.filter_fn)} returned {answer!r} of type "
            f"{type(answer).__name__}: is a return or a comparison missing?"
        )


@functional_datapipe("filter")
class Filter(OneInput[T]):
    """Hands on the items for which ``filter_fn`` returns True, in order; open streams in the others are closed.

    With ``input_col`` (an index or key, or a list of them) the function is called with those parts of the item.

    State: that of ``filter_fn`` if it has any. It has no length.

    Raises: TypeError if ``filter_fn`` is no function; ValueError if it cannot take the columns or, while iterating,
    returns something else than a truth value (a forgotten ``return`` gives None).
    """

    iterator = _FilterIterator
    names_files = True  # if its input does

    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[[T], Any]) -> None: ...
    @overload
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any) -> None: ...
    def __init__(self, datapipe: IterDataPipe[T], filter_fn: Callable[..., Any], input_col: Any = None) -> None:
        super().__init__(datapipe)
        check_columns("filter_fn", filter_fn, input_col)
        self.filter_fn = filter_fn
        self.input_col = input_col


R = TypeVar("R")


class _MapIterator(ItemIterator[R]):
    def __init__(self, node: Mapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn: Callable[[Any], R] = apply_to_columns(self.with_retries(node.fn), node.input_col, node.output_col)

    def run(self) -> Iterator[R]:
        fn = self.fn
        for item in self.source.items():
            yield fn(item)


@functional_datapipe("map")
class Mapper(OnePerItem[R]):
    """Applies ``fn`` to every item.

    With ``input_col`` (an index or key, or a list of them) ``fn`` is called with those parts of the item, and its
    result goes into a copy of the item: into ``output_col`` (-1 appends), by default in place of the first of
    ``input_col``, the others being removed.

    State: that of ``fn`` if it has ``state_dict``/``load_state_dict``. Exceptions of ``fn`` pass unchanged.

    Raises: TypeError if ``fn`` is no function; ValueError if it cannot take the columns, or for ``output_col`` alone.
    """

    iterator = _MapIterator
    one_to_one = True

    @overload
    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], R]) -> None: ...
    @overload
    def __init__(
        self: Mapper[Any], datapipe: IterDataPipe[Any], fn: Callable[..., Any], input_col: Any, output_col: Any = None
    ) -> None: ...
    def __init__(
        self, datapipe: IterDataPipe[Any], fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        super().__init__(datapipe)
        check_columns("fn", fn, input_col)
        self.fn = fn
        self.input_col = input_col
        self.output_col = single_output(input_col, output_col)


class _RandomMapIterator(CountingIterator[R]):
    def __init__(self, node: RandomMapper[R], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.fn = self.with_retries(node.fn)
        self.streams = ItemStreams(context.stream_key(node))
        self.index = 0

    def get_state(self) -> dict[str, Any]:
        return {"key": list(self.streams.key), "index": self.index}

    def set_state(self, state: dict[str, Any]) -> None:
        self.streams = ItemStreams(stored_key(state["key"]))
        self.index = stored_count(state, "index")

    def run(self) -> Iterator[R]:
        fn, generator = self.fn, self.streams.generator
        for item in self.source.items():
            index = self.index
            self.index = index + 1
            yield fn(item, generator(index))


@functional_datapipe("random_map")
class RandomMapper(OnePerItem[R]):
    """Applies ``fn(item, rng)`` to every item, where ``rng`` is a numpy ``Generator`` that belongs to this item alone.

    What an item draws is a function of seed, epoch, shard, position in the graph and index, whatever happened before
    it: the way to write augmentation that does not depend on workers, prefetching or resuming.

    State: a key and the number of items; that of ``fn`` if it has any.

    Raises: TypeError if ``fn`` is no function; ValueError if it does not take two arguments.
    """

    iterator = _RandomMapIterator

    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T, np.random.Generator], R]) -> None:
        super().__init__(datapipe)
        check_columns("fn", fn, ["item", "rng"])
        self.fn: Callable[[Any, np.random.Generator], R] = fn
