"""``add_index``: the number of each dict, within it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchpipe.iter._shared.bases import CountingIterator, OnePerItem
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe

__all__ = ["IndexAdder"]


class _IndexIterator(CountingIterator[dict[Any, Any]]):
    node: IndexAdder
    saved = ("number",)
    number = 0

    def run(self) -> Iterator[dict[Any, Any]]:
        for item in self.source.items():
            if not isinstance(item, dict):
                raise TypeError(f"add_index needs dicts, got {item!r:.200}: enumerate() numbers items of all kinds")
            self.number += 1
            yield {**item, self.node.index_name: self.number - 1}


@functional_datapipe("add_index")
class IndexAdder(OnePerItem[dict[Any, Any]]):
    """Adds to a copy of each dict its number in the stream, from 0 on, under the key ``index_name``.

    State: the next number. Raises: while iterating, TypeError for an item that is no dict.
    """

    iterator = _IndexIterator

    def __init__(self, source_datapipe: IterDataPipe[dict[Any, Any]], index_name: str = "index") -> None:
        super().__init__(source_datapipe)
        self.index_name = index_name
