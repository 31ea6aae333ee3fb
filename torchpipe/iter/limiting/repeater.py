"""``repeat``: every item several times in a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_count
from torchpipe.state.copying import copy_item

__all__ = ["Repeater"]

T = TypeVar("T")


class _RepeatIterator(NodeIterator[T]):
    node: Repeater[T]
    keeps_items = True

    def __init__(self, node: Repeater[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context, source)
        self.item: Any = None
        self.left = 0

    def get_state(self) -> dict[str, Any]:
        return {"left": self.left, "item": self.kept_items([self.item])[0]} if self.left else {"left": 0}

    def set_state(self, state: dict[str, Any]) -> None:
        self.left = stored_count(state, "left", at_most=self.node.times)
        self.item = copy_item(state["item"]) if self.left else None

    def run(self) -> Iterator[T]:
        yield from self._again()
        times = self.node.times
        for item in self.source.items():
            self.item, self.left = item, times
            yield from self._again()

    def _again(self) -> Iterator[T]:
        while self.left:
            self.left -= 1
            held = [copy_item(self.item) if self.left else self.item]
            if not self.left:
                self.item = None
            yield held.pop()


@functional_datapipe("repeat")
class Repeater(OneInput[T]):
    """Hands out every item ``times`` times in a row; to repeat whole passes use ``cycle``.

    All but the last are copies of the item as it came, of what can be changed in place: who changes one does not change
    the others.

    State: the item, while it is being repeated, and how often it is still to come.

    Raises: ValueError if ``times`` is below 1.
    """

    iterator = _RepeatIterator

    def __init__(self, source_datapipe: IterDataPipe[T], times: int) -> None:
        super().__init__(source_datapipe)
        self.times = check_count("times", times, at_least=1)

    def __len__(self) -> int:
        return self.times * len(self.source)
