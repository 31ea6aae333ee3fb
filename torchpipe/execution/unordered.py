"""A merge that takes from whichever shard has something first: torch's ``in_order=False``.

Runs in the consumer's process.
"""

from __future__ import annotations

from dataclasses import replace

from torchpipe.errors import raise_error_of
from torchpipe.execution.merge import MergeIterator, MergePosition
from torchpipe.execution.provider import ShardProvider

__all__ = ["UnorderedMerge"]


class UnorderedMerge(MergeIterator):
    """As its base, in the order in which items come. State: exact, though another run may take another order."""

    def _next_position(self, provider: ShardProvider) -> MergePosition:
        cursors, turn, _ = self._position.after(self._position.size)
        live = list(self._position.live)
        while live:
            in_turn = live[turn:] + live[:turn]
            first = next((shard for shard in in_turn if (rest := self._rests[shard]).items or not rest.open), None)
            if first is None:
                self._pull(provider, in_turn)
                continue
            turn, rest = live.index(first), self._rests[first]
            if rest.items:
                return replace(self._with_block(cursors, live, turn, False, [first]), single_shard=True)
            if rest.error is not None:
                raise_error_of(rest)
            live.remove(first)
            turn = turn % len(live) if live else 0
        return MergePosition(cursors, live)
