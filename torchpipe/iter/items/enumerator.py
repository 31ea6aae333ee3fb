"""``enumerate``: number the items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import CountingIterator, OnePerItem
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.plain import plain

__all__ = ["Enumerator"]

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
