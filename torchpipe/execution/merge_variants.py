"""MergeSet of other kinds: ranks that host the same shards take turns, shards end together, and whichever shard has
something comes first (torch's ``in_order=False``).

Runs in the consumer's process, on every rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from torchpipe.errors import RankError, raise_error_of
from torchpipe.execution.epoch import EpochStart, LeftOver, Part, Uneven, no_item
from torchpipe.execution.merge import MergeIterator, MergeSet, Stretch
from torchpipe.execution.provider import ShardProvider
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator, StreamOver
from torchpipe.node.traits import DataPipe
from torchpipe.state.cursor import Rotation

__all__ = ["RoundsMerge", "TurnsIterator", "UnorderedMerge", "merge_below"]


class TurnsIterator(StreamOver):
    """Every ``turns``-th item of a merge. It makes the others too, and drops them: other ranks have these.

    State: that of the merge, after the turns of all ranks. It is the same on all that take turns, and says nothing of
    their number.
    """

    exact_after_error = True
    untimed = True

    def __init__(self, merge: MergeIterator, part: Part) -> None:
        super().__init__(merge)
        self.merge = merge
        self.part = part
        self._after = merge.state_later()

    def state_dict(self) -> dict[str, Any]:
        return self._after()

    def state_later(self) -> Callable[[], dict[str, Any]]:
        return self._after

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.merge.load_state_dict(state)
        self._after = self.merge.state_later()

    def run(self) -> Iterator[Any]:
        items, turn = self.merge.items(), self.part.turn
        while True:
            round_of_turns = list(islice(items, self.part.turns))
            self._after = self.merge.state_later()
            if len(round_of_turns) <= turn:
                return
            item = round_of_turns[turn]
            del round_of_turns
            yield item
            del item


def merge_below(stream: NodeIterator[Any]) -> tuple[MergeIterator | None, Part]:
    """The merge that ``stream`` is, or takes turns at; None if there is another node between."""
    if isinstance(stream, TurnsIterator):
        return stream.merge, stream.part
    return stream if isinstance(stream, MergeIterator) else None, Part()


class RoundsMerge(MergeIterator):
    """A merge in which a shard that has no more items ends the epoch. ``start.rounds`` is DROP, or RAISE: then items
    that are left are an error.
    """

    def __init__(self, node: DataPipe, context: Context, start: EpochStart, merges: MergeSet, branch: int = 0) -> None:
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


class UnorderedMerge(MergeIterator):
    """A merge in the order in which items come. State: exact, though another run may take another order."""

    def _next(self, provider: ShardProvider) -> tuple[Stretch, list[Any]]:
        at = replace(self._stretch.at(self._stretch.block[1]), ragged=False)
        while at.live:
            in_turn = at.live[at.turn :] + at.live[: at.turn]
            first = next((shard for shard in in_turn if (rest := self._rests[shard]).items or not rest.open), None)
            if first is None:
                began = time.perf_counter()
                lane, chunk = provider.pull_any([self._lane(shard) for shard in in_turn])
                self._add(next(shard for shard in in_turn if self._lane(shard) == lane), chunk, began)
                continue
            at, rest = replace(at, turn=at.live.index(first)), self._rests[first]
            if rest.items:
                stretch = self._from(at, [first])
                return stretch, self._in_order(stretch, len(rest.items))
            if rest.error is not None:
                raise_error_of(rest)
            at = at.without(first)
        return self._from(at), []
