"""``random_map``: apply a function that draws random numbers to every item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from torchpipe.iter._shared.bases import CountingIterator, OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import stored_count
from torchpipe.node.validate import check_columns
from torchpipe.randomness.seeds import ItemStreams, stored_key

__all__ = ["RandomMapper"]

T = TypeVar("T")
R = TypeVar("R")


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
