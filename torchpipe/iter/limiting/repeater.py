"""``repeat``: every item several times in a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_count, check_input

__all__ = ["Repeater"]

T = TypeVar("T")


@functional_datapipe("repeat")
class Repeater(IterDataPipe[T]):
    """Hands out every item ``times`` times in a row: the same object, not copies. To repeat whole passes use ``cycle``.

    State: the item, while it is being repeated, and how often it is still to come.

    Raises: ValueError if ``times`` is below 1.
    """

    def __init__(self, source_datapipe: IterDataPipe[T], times: int) -> None:
        check_input("repeat", source_datapipe)
        self.source_datapipe = source_datapipe
        self.times = check_count("times", times, at_least=1)

    def __len__(self) -> int:
        return self.times * len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _RepeatIterator(self, context)


class _RepeatIterator(NodeIterator[T]):
    node: Repeater[T]

    def __init__(self, node: Repeater[T], context: Context) -> None:
        super().__init__(node, context, node.source_datapipe)
        self.item: Any = None
        self.left = 0

    def get_state(self) -> dict[str, Any]:
        return {"left": self.left, "item": self.item} if self.left else {"left": 0}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_count(state, "left", at_most=self.node.times)
        self.item = state["item"] if self.left else None

    def run(self) -> Iterator[T]:
        yield from self._again()
        times = self.node.times
        for item in self.source.items():
            self.item, self.left = item, times
            yield from self._again()

    def _again(self) -> Iterator[T]:
        while self.left:
            self.left -= 1
            yield self.item
