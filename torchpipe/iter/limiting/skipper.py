"""``skip``: all but the first items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from torchpipe.indexed.selecting import SelectingIterator
from torchpipe.iter._shared.bases import OneInput
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.validate import check_count

__all__ = ["Skipper"]

T = TypeVar("T")


class _SkipIterator(SelectingIterator[T]):
    node: Skipper[T]
    saved = ("skipped",)
    skipped = 0

    def choose(self) -> Iterator[Any]:
        for item in self.source.items():
            if self.skipped < self.node.count:
                self.skipped += 1
            else:
                yield item


@functional_datapipe("skip")
class Skipper(OneInput[T]):
    """All items but the first ``count``. Of a source that is read by position those are not made.

    After ``sharding_filter`` each shard leaves out as many. To go on where a run stopped, load its state instead.

    State: the number of items left out.

    Raises: ValueError if ``count`` is negative.
    """

    iterator = _SkipIterator
    selects = True

    def __init__(self, source_datapipe: IterDataPipe[T], count: int) -> None:
        super().__init__(source_datapipe)
        self.count = check_count("count", count, at_least=0)

    def __len__(self) -> int:
        return max(0, len(self.source) - self.count)
