"""``add_index``: the number of each dict, within it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, stored_count
from torchpipe.node.validate import check_input

__all__ = ["IndexAdder"]


@functional_datapipe("add_index")
class IndexAdder(IterDataPipe[dict[Any, Any]]):
    """Adds to a copy of each dict its number in the stream, from 0 on, under the key ``index_name``.

    State: the next number. Raises: while iterating, TypeError for an item that is no dict.
    """

    def __init__(self, source_datapipe: IterDataPipe[dict[Any, Any]], index_name: str = "index") -> None:
        check_input("add_index", source_datapipe)
        self.source_datapipe = source_datapipe
        self.index_name = index_name

    def __len__(self) -> int:
        return len(self.source_datapipe)

    def iterate(self, context: Context) -> NodeIterator[dict[Any, Any]]:
        return _IndexIterator(self, context, self.source_datapipe)


class _IndexIterator(NodeIterator[dict[Any, Any]]):
    node: IndexAdder
    number = 0

    def get_state(self) -> dict[str, Any]:
        return {"number": self.number}

    def set_state(self, state: dict[str, Any]) -> None:
        self.number = stored_count(state, "number")

    def leave_out(self) -> bool:
        return True

    def run(self) -> Iterator[dict[Any, Any]]:
        for item in self.source.items():
            if not isinstance(item, dict):
                raise TypeError(f"add_index needs dicts, got {item!r:.200}: enumerate() numbers items of all kinds")
            self.number += 1
            yield {**item, self.node.index_name: self.number - 1}
