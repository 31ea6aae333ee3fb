"""``header`` and ``take``: the first items alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.iterator import NodeIterator, Positions
from torchpipe.node.validate import check_count

__all__ = ["Header", "Taker"]

T = TypeVar("T")


class _HeadIterator(NodeIterator[T]):
    node: Header[T]
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


@functional_datapipe("header")
class Header(OneInput[T]):
    """The first ``limit`` items (None: all of them); no more than these are pulled from the input.

    State: the number of items handed out. The length is known only if that of the input is.

    Raises: ValueError if ``limit`` is negative.
    """

    iterator = _HeadIterator
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], limit: int | None = 10) -> None:
        super().__init__(source_datapipe)
        self.limit = None if limit is None else check_count("limit", limit, at_least=0)

    def __len__(self) -> int:
        length = len(self.source)
        return length if self.limit is None else min(length, self.limit)


@functional_datapipe("take")
class Taker(Header[T]):
    """The first ``count`` items: ``header`` under the name that other libraries have, without a default.

    State: the number of items handed out. Raises: ValueError if ``count`` is negative.
    """

    def __init__(self, source_datapipe: IterDataPipe[T], count: int) -> None:
        super().__init__(source_datapipe, check_count("count", count, at_least=0))
