"""``map``: apply a function to every item. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from torchpipe.context import Context
from torchpipe.datapipe import IterDataPipe, functional_datapipe
from torchpipe.iterator import NodeIterator

__all__ = ["Mapper"]

T = TypeVar("T")
R = TypeVar("R")


@functional_datapipe("map")
class Mapper(IterDataPipe[R]):
    def __init__(self, datapipe: IterDataPipe[T], fn: Callable[[T], R]) -> None:
        self.datapipe = datapipe
        self.fn = fn

    def __len__(self) -> int:
        return len(self.datapipe)

    def iterate(self, context: Context) -> NodeIterator[R]:
        return _MapIterator(self, context)


class _MapIterator(NodeIterator[R]):
    def __init__(self, node: Mapper[R], context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        self.fn = self.adopt(node.fn)

    def run(self) -> Iterator[R]:
        fn = self.fn
        for item in self.source.items():
            yield fn(item)
