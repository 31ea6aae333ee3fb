"""``concat``: one input after the other. Runs wherever its shard runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.context import Context
from torchpipe.datapipe import IterDataPipe, functional_datapipe
from torchpipe.iterator import NodeIterator, stored_count
from torchpipe.validate import check_input

__all__ = ["Concater"]

T = TypeVar("T")


@functional_datapipe("concat")
class Concater(IterDataPipe[T]):
    """All items of the first input, then all of the second one, and so on.

    State: which input is being read.

    Raises: ValueError without inputs; TypeError for an input that is no iterable node.
    """

    def __init__(self, *datapipes: IterDataPipe[T]) -> None:
        if not datapipes:
            raise ValueError("concat needs at least one datapipe, got none")
        for datapipe in datapipes:
            check_input("concat", datapipe)
        self.datapipes = datapipes

    def __len__(self) -> int:
        return sum(len(datapipe) for datapipe in self.datapipes)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _ConcatIterator(self, context, *self.datapipes)


class _ConcatIterator(NodeIterator[T]):
    reading = 0

    def get_state(self) -> dict[str, Any]:
        return {"reading": self.reading}

    def set_state(self, state: dict[str, Any]) -> None:
        self.reading = stored_count(state, "reading", at_most=len(self.inputs) - 1)

    def run(self) -> Iterator[T]:
        for number, item in enumerate(self.inputs):
            if number >= self.reading:
                self.reading = number
                yield from item.items()
