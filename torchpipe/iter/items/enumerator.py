"""``enumerate``: number the items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.validate import check_input

__all__ = ["Enumerator"]

T = TypeVar("T")


@functional_datapipe("enumerate")
class Enumerator(IterDataPipe[tuple[int, T]]):
    """Pairs ``(number, item)``, numbered from ``starting_index``. After ``sharding_filter`` each shard counts alone.

    State: the next number.
    """

    def __init__(self, source_datapipe: IterDataPipe[T], starting_index: int = 0) -> None:
        check_input("enumerate", source_datapipe)
        if isinstance(starting_index, bool) or not isinstance(starting_index, int):
            raise TypeError(f"starting_index must be an integer, got {starting_index!r}")
        self.source_datapipe = source_datapipe
        self.starting_index = starting_index

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[tuple[int, T]]:
        return _EnumerateIterator(self, context)


class _EnumerateIterator(NodeIterator[tuple[int, T]]):
    def __init__(self, node: Enumerator[T], context: Context) -> None:
        super().__init__(node, context, node.source_datapipe)
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
