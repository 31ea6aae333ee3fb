"""A merge that takes from whichever shard has something first: torch's ``in_order=False``.

Runs in the consumer's process.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torchpipe.errors import raise_error_of
from torchpipe.execution.merge import MergeIterator, Stretch
from torchpipe.execution.provider import ShardProvider

__all__ = ["UnorderedMerge"]


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
