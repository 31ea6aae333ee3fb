"""The entries that the engine has dealt to a worker, whose items are not made yet. Nothing waits here: a lane without
an entry is not asked for an item.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Collection

from reading_services.engine.messages import Deal
from reading_services.hosting.shards import Supply
from torchpipe.execution.dispatch import Entry

__all__ = ["EntrySupply"]


class EntrySupply(Supply):
    """The entries of a worker's lanes, in one generation. A lane is a shard: such a graph has one branch."""

    def __init__(self) -> None:
        self._entries: dict[int, deque[bytes]] = {}
        self._over: set[int] = set()

    def add(self, deal: Deal) -> None:
        self._entries.setdefault(deal.lane, deque()).extend(deal.entries)
        if deal.over:
            self._over.add(deal.lane)

    def keep(self, lanes: Collection[int]) -> None:
        """Forget all lanes but these."""
        self._over.intersection_update(lanes)
        for lane in self._entries.keys() - set(lanes):
            del self._entries[lane]

    def left(self, lane: int) -> int:
        """The number of items that can be asked for, or be found not to exist."""
        return len(self._entries.get(lane, ())) or int(lane in self._over)

    def take(self, shard: int) -> Entry | None:
        entries = self._entries.get(shard)
        return (pickle.loads(entries.popleft()),) if entries else None

    def close(self) -> None:
        self._entries.clear()
