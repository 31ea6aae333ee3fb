"""Dispatched items for the shards of a worker: asked for ahead, from wherever the dispatched part runs."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from reading_services.hosting.shards import Supply
from torchpipe.execution.dispatch import Entry

__all__ = ["PrefetchingSupply", "ShardQueue"]

_WISH_BYTES = 1 << 20  # of small items, more are asked for at a time than the window says: up to so many bytes


class ShardQueue:
    """What a shard has of its dispatched items."""

    def __init__(self, window: int) -> None:
        self.ready: deque[Entry] = deque()
        self.items = 0  # of them
        self.window = window  # that it wants to have
        self.asked: Any = None  # the wish that is on its way
        self.over = False
        self.error: BaseException | None = None


class PrefetchingSupply(Supply):
    """For each of ``shards``, ``window`` items are asked for ahead; if they are small and quickly used, more."""

    def __init__(self, shards: Iterable[int], window: int) -> None:
        self._item_bytes = _WISH_BYTES
        self._shards = {shard: ShardQueue(window) for shard in shards}

    @abstractmethod
    def _send(self, shard: int, items: int) -> Any:
        """Ask for so many items of a shard: the wish, which is not None."""

    @abstractmethod
    def _wait(self, mine: ShardQueue) -> None:
        """Wait for something to happen. Raises: whatever says that the items are not wanted any more."""

    def take(self, shard: int) -> Entry | None:
        self.check()
        mine = self._shards[shard]
        if not mine.items and not mine.over and 2 * mine.window * self._item_bytes <= _WISH_BYTES:
            mine.window *= 2  # the shard has to wait, and its items are small
        while not mine.ready:
            if mine.error is not None:
                raise mine.error
            if mine.over:
                return None
            self._ask(shard)
            self._wait(mine)
        entry = mine.ready.popleft()
        if isinstance(entry, tuple):
            mine.items -= 1
            if 2 * mine.items <= mine.window:
                self._ask(shard)
        return entry

    def _ask_for_all(self) -> None:
        for shard in self._shards:
            self._ask(shard)

    def _ask(self, shard: int) -> None:
        mine = self._shards[shard]
        if mine.asked is None and not mine.over:
            mine.asked = self._send(shard, max(1, mine.window - mine.items))

    def _arrived(
        self, mine: ShardQueue, entries: Sequence[Entry], nbytes: int, *, over: bool, error: BaseException | None
    ) -> None:
        """What was asked for has come; ``over``: nothing comes after it, because of ``error`` if there is one."""
        mine.asked = None
        mine.ready.extend(entries)
        mine.items += sum(isinstance(entry, tuple) for entry in entries)
        mine.over, mine.error = over, error
        self._item_bytes = nbytes // max(1, len(entries)) + 1
