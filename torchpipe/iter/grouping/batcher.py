"""``batch``: gather items into lists. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import DataChunk, IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_count, check_function, check_input

__all__ = ["Batcher"]

T = TypeVar("T")


@functional_datapipe("batch")
class Batcher(IterDataPipe[list[T]]):
    """Gathers ``batch_size`` consecutive items into a list; a shorter last one is left out with ``drop_last``.

    ``wrapper_class`` is called with each list and makes the batch of it.

    State: none of its own, since between two batches it holds no item.

    Raises: ValueError if ``batch_size`` is below 1; TypeError if ``wrapper_class`` cannot be called.
    """

    def __init__(
        self,
        datapipe: IterDataPipe[T],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[Any]], Any] = DataChunk,
    ) -> None:
        check_input("batch", datapipe)
        check_function("wrapper_class", wrapper_class)
        self.datapipe = datapipe
        self.batch_size = check_count("batch_size", batch_size, at_least=1)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __len__(self) -> int:
        full, rest = divmod(len(self.datapipe), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def iterate(self, context: Context) -> NodeIterator[list[T]]:
        return _BatchIterator(self, context)


class _BatchIterator(NodeIterator[list[T]]):
    node: Batcher[T]

    def __init__(self, node: Batcher[T], context: Context) -> None:
        super().__init__(node, context, node.datapipe)
        self.wrap = self.adopt(node.wrapper_class)

    def run(self) -> Iterator[list[T]]:
        size, wrap = self.node.batch_size, self.wrap
        stream = self.source.items()
        least = size if self.node.drop_last else 1
        while len(batch := list(islice(stream, size))) >= least:
            full = wrap(batch)
            del batch  # let go of it before it is handed out
            yield full
            del full
