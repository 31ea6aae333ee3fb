"""``CountingSource``: a source that tells how much was pulled from it. Runs in the test's process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import NodeIterator

__all__ = ["CountingSource", "Pulls"]

T = TypeVar("T")


@dataclass(eq=False)
class Pulls:
    """The pulls from a :class:`CountingSource`, over all its passes."""

    total: int = 0
    open_passes: int = 0


class CountingSource(IterDataPipe[T]):
    """Yields the items of a sequence; its ``pulls`` count the items pulled and the passes that are not closed.

    Not thread-safe. State: one integer.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.pulls = Pulls()

    def __len__(self) -> int:
        return len(self.items)

    def iterate(self, context: Context) -> NodeIterator[T]:
        return _CountingIterator(self, context)


class _CountingIterator(NodeIterator[T]):
    node: CountingSource[T]

    def __init__(self, node: CountingSource[T], context: Context) -> None:
        super().__init__(node, context)
        self.index = 0
        node.pulls.open_passes += 1

    def get_state(self) -> dict[str, Any]:
        return {"index": self.index}

    def set_state(self, state: dict[str, Any]) -> None:
        self.index = state["index"]

    def run(self) -> Iterator[T]:
        while self.index < len(self.node.items):
            self.index += 1
            self.node.pulls.total += 1
            yield self.node.items[self.index - 1]

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            self.node.pulls.open_passes -= 1
        super().close()
