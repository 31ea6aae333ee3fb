"""``take``: the first items alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, Positions
from torchpipe.node.validate import check_count

__all__ = ["Taker"]

T = TypeVar("T")


class _TakeIterator(NodeIterator[T]):
    node: Taker[T]
    saved = ("count",)
    count = 0

    @property
    def positional(self) -> bool:
        return self.source.positional

    def by_position(self) -> Positions:
        return self.source.by_position()

    def run(self) -> Iterator[T]:
        limit = self.node.limit
        if limit is None:
            yield from self.source.items()
            return
        if self.count >= limit:
            return
        for item in self.source.items():
            self.count += 1
            yield item
            if self.count >= limit:
                return


@functional_datapipe("take")
class Taker(OneInput[T]):
    """The first ``count`` items; no more than these are pulled from the input.

    State: the number of items handed out. The length is known only if that of the input is.

    Raises: ValueError if ``count`` is negative.
    """

    iterator = _TakeIterator
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], count: int) -> None:
        super().__init__(source_datapipe)
        self.limit: int | None = check_count("count", count, at_least=0)  # None: all, for header()

    def __len__(self) -> int:
        length = len(self.source)
        return length if self.limit is None else min(length, self.limit)
