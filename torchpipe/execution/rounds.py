"""A merge whose shards end together: with the last round in which each has an item. For ranks that take equal steps.

Runs in the consumer's process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchpipe.errors import RankError, raise_error_of
from torchpipe.execution.epoch import EpochStart, LeftOver, Uneven, no_item
from torchpipe.execution.merge import MergeIterator, Merges, Stretch
from torchpipe.execution.provider import ShardProvider
from torchpipe.node.context import Context
from torchpipe.node.traits import DataPipe
from torchpipe.state.rotation import Rotation

__all__ = ["RoundsMerge"]


class RoundsMerge(MergeIterator):
    """A merge in which a shard that has no more items ends the epoch. ``start.rounds`` is DROP, or RAISE: then items
    that are left are an error.
    """

    def __init__(self, node: DataPipe, context: Context, start: EpochStart, merges: Merges, branch: int = 0) -> None:
        super().__init__(node, context, start, merges, branch)
        self._raises = start.rounds is Uneven.RAISE
        self.left_over: LeftOver | None = None
        self.ended_first: list[int] = []  # the numbers of the shards that ended it

    def _next(self, provider: ShardProvider) -> tuple[Stretch, list[Any]]:
        at = self._stretch.at(self._stretch.block[1])
        size = self._fill_rounds(provider, at) - at.items_behind if at.live else 0
        if size > 0:
            stretch = self._from(at)
            return stretch, self._in_order(stretch, min(size, len(stretch.order)) if at.ragged else size)
        if at.live:
            self._note_left_over()
        return self._from(replace(at, turn=0, ragged=False)), []

    def _fill_rounds(self, provider: ShardProvider, at: Rotation) -> int:
        """The number of items left in whole rounds, with more at hand than another rank is ahead, if there are.

        Raises: the error that stands in the place of an item of the first round that is not whole; RankError if only
        some shards have ended there, and that is not to be, or before their first item.
        """
        live = set(at.live)
        while True:
            ends = [rest.count for rest in self._rests]
            whole = min(ends)
            left = sum(max(0, whole - cursor.count) for cursor in at.cursors)
            first = [shard for shard, end in enumerate(ends) if end == whole]
            more = [shard for shard in first if shard in live and self._rests[shard].open]
            if left > at.items_behind:
                return left
            for shard in more:
                self._pull(provider, shard)
            if more:
                continue
            for shard in first:
                if self._rests[shard].error is not None:
                    raise_error_of(self._rests[shard])
            names = ", ".join(str(self._numbers[shard]) for shard in first)
            if not whole and len(first) < len(ends):
                raise RankError(no_item(f"shard {names}", f"{self._total} shards"))
            if self._raises and len(first) < len(ends):
                raise RankError(
                    f"shard {names} has no more items after {whole}, while others have: the numbers of items are "
                    'uneven. Choose uneven="drop" to end everywhere with the last round that all have, or "pad" to '
                    "have all items"
                )
            return left

    def _note_left_over(self) -> None:
        ends = [rest.count for rest in self._rests]
        self.ended_first = [self._numbers[shard] for shard, end in enumerate(ends) if end == min(ends)]
        items, exact = self.left()
        if items or not exact:
            names = ", ".join(map(str, self.ended_first))
            self.left_over = LeftOver(ended=f"shard {names}", by_rank=(items,), exact=exact, parts=len(ends))
