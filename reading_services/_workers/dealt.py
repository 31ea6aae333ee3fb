"""What a worker has been dealt by the main process and has not made items of yet.

Runs in workers. Nothing waits here: a lane without an entry is not asked for an item.
"""

from __future__ import annotations

import pickle
from collections import deque

from reading_services._transport.messages import Deal
from torchpipe.execution.dispatch import DispatchSupply, Entry

__all__ = ["DealtSupply"]


class DealtSupply(DispatchSupply):
    """The entries of a worker's lanes, in one generation. A lane is a shard: such a graph has one branch."""

    def __init__(self) -> None:
        self._entries: dict[int, deque[bytes]] = {}
        self._over: set[int] = set()

    def add(self, deal: Deal) -> None:
        self._entries.setdefault(deal.lane, deque()).extend(deal.entries)
        if deal.over:
            self._over.add(deal.lane)

    def left(self, lane: int) -> int:
        """How many items can be asked for, or be found not to exist."""
        return len(self._entries.get(lane, ())) or int(lane in self._over)

    def take(self, shard: int) -> Entry | None:
        entries = self._entries.get(shard)
        return (pickle.loads(entries.popleft()),) if entries else None

    def close(self) -> None:
        self._entries.clear()
