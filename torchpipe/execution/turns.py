"""Ranks that host the same shards take turns at their items (:class:`~torchpipe.execution.part.Part`).

Runs in the main process of every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torchpipe.execution.merge import MergeIterator
from torchpipe.execution.part import Part
from torchpipe.node.iterator import NodeIterator

__all__ = ["TurnsIterator", "merge_below"]


class TurnsIterator(NodeIterator[Any]):
    """Every ``turns``-th item of a merge. It makes the others too, and drops them: other ranks have these.

    State: that of the merge, after the turns of all ranks. It is the same on all that take turns, and says nothing of
    their number.
    """

    exact_after_error = True
    untimed = True

    def __init__(self, merge: MergeIterator, part: Part) -> None:
        super().__init__(merge.node, merge.context)
        self.inputs = (merge,)
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
