"""A merge whose shards end together: with the last round in which each has an item. For ranks that take equal steps.

Runs in the consumer's process.
"""

from __future__ import annotations

from torchpipe.errors import RankError, raise_error_of
from torchpipe.execution.epoch import EpochStart, LeftOver, Uneven, no_item
from torchpipe.execution.merge import CursorParts, MergeIterator, MergePosition, Merges, shards_in_turn
from torchpipe.execution.provider import ShardProvider
from torchpipe.node.context import Context
from torchpipe.node.traits import DataPipe

__all__ = ["RoundsMerge"]


class RoundsMerge(MergeIterator):
    """As its base; a shard that has no more items ends the epoch. ``start.rounds`` is DROP, or RAISE: then items that
    are left are an error.
    """

    def __init__(self, node: DataPipe, context: Context, start: EpochStart, merges: Merges, branch: int = 0) -> None:
        super().__init__(node, context, start, merges, branch)
        self._raises = start.rounds is Uneven.RAISE
        self.left_over: LeftOver | None = None
        self.ended_first: list[int] = []  # the numbers of the shards that ended it

    def _next_position(self, provider: ShardProvider) -> MergePosition:
        position = self._position
        cursors, turn, ragged = position.after(position.size)
        live = list(position.live)
        size = self._fill_rounds(provider, cursors, set(live)) - self._items_behind if live else 0
        if size > 0:
            in_turn, turn, ragged = shards_in_turn(cursors, live, turn, ragged)
            return self._with_block(cursors, live, turn, ragged, in_turn, size)
        if live:
            self._note_left_over(cursors)
        return MergePosition(cursors, live)

    def _fill_rounds(self, provider: ShardProvider, cursors: list[CursorParts], live: set[int]) -> int:
        """How many items are left in rounds that are whole, with more at hand than another rank is ahead, if there are.

        Raises: the error that stands in the place of an item of the first round that is not whole; RankError if only
        some shards have ended there, and that is not to be, or before their first item.
        """
        while True:
            ends = [count + len(rest.items) for (_, _, count), rest in zip(cursors, self._rests)]
            whole = min(ends)
            left = sum(max(0, whole - count) for _, _, count in cursors)
            first = [shard for shard, end in enumerate(ends) if end == whole]
            more = [shard for shard in first if shard in live and self._rests[shard].open]
            if left > self._items_behind:
                return left
            if more:
                self._pull(provider, more[:1])
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

    def _note_left_over(self, cursors: list[CursorParts]) -> None:
        ends = [count + len(rest.items) for (_, _, count), rest in zip(cursors, self._rests)]
        self.ended_first = [self._numbers[shard] for shard, end in enumerate(ends) if end == min(ends)]
        items, exact = self.left()
        if items or not exact:
            names = ", ".join(map(str, self.ended_first))
            self.left_over = LeftOver(ended=f"shard {names}", by_rank=(items,), exact=exact, parts=len(ends))
