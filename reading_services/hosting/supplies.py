"""The items that the shards of a worker are supplied with, where they read no source of their own.

Dispatched items for the shards of a worker: asked for ahead, from wherever the dispatched part runs.

The entries that the engine has dealt to a worker, whose items are not made yet. Nothing waits here: a lane without
an entry is not asked for an item.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from reading_services.engine.messages import Deal
from reading_services.hosting.shards import Supply
from torchpipe.errors import raise_error_of
from torchpipe.execution.dispatch import Entry

__all__ = ["EntrySupply", "PrefetchingSupply", "ShardQueue"]

_PREFETCH_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class ShardQueue:
    """The dispatched items of a shard."""

    def __init__(self, window: int) -> None:
        self.ready: deque[Entry] = deque()
        self.items = 0  # of them
        self.window = window  # that it wants to have
        self.request: Any = None  # that is on its way
        self.over = False
        self.error: BaseException | None = None


class PrefetchingSupply(Supply):
    """For each of ``shards``, ``window`` items are asked for ahead; if they are small and quickly used, more."""

    def __init__(self, shards: Iterable[int], window: int) -> None:
        self._item_bytes = _PREFETCH_BYTES
        self._shards = {shard: ShardQueue(window) for shard in shards}

    @abstractmethod
    def _send(self, shard: int, items: int) -> Any:
        """Ask for so many items of a shard: the request, which is not None."""

    @abstractmethod
    def _wait(self, queue: ShardQueue) -> None:
        """Wait for something to happen. Raises: whatever says that the items are not wanted any more."""

    def take(self, shard: int) -> Entry | None:
        self.check()
        queue = self._shards[shard]
        if not queue.items and not queue.over and 2 * queue.window * self._item_bytes <= _PREFETCH_BYTES:
            queue.window *= 2  # the shard has to wait, and its items are small
        while not queue.ready:
            if queue.error is not None:
                raise_error_of(queue)
            if queue.over:
                return None
            self._ask(shard)
            self._wait(queue)
        entry = queue.ready.popleft()
        if isinstance(entry, tuple):
            queue.items -= 1
            if 2 * queue.items <= queue.window:
                self._ask(shard)
        return entry

    def _ask_for_all(self) -> None:
        for shard in self._shards:
            self._ask(shard)

    def _ask(self, shard: int) -> None:
        queue = self._shards[shard]
        if queue.request is None and not queue.over:
            queue.request = self._send(shard, max(1, queue.window - queue.items))

    def _arrived(
        self, queue: ShardQueue, entries: Sequence[Entry], nbytes: int, *, over: bool, error: BaseException | None
    ) -> None:
        """The requested entries have come; ``over``: nothing comes after them, because of ``error`` if there is one."""
        queue.request = None
        queue.ready.extend(entries)
        queue.items += sum(isinstance(entry, tuple) for entry in entries)
        queue.over, queue.error = over, error
        self._item_bytes = nbytes // max(1, len(entries)) + 1


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
