"""The merge: takes from the shards in strict rotation and remembers, by a cursor for each shard, what was handed out.

Runs in the consumer's process. Imports ``context``, ``iterator``, ``shard`` and ``state``. It decides the order; who
produces the items, and where, is behind :class:`ShardProvider`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from torchpipe.context import Context
from torchpipe.errors import StateError
from torchpipe.iterator import NodeIterator
from torchpipe.nodes import DataPipe
from torchpipe.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["MergeIterator", "ShardPosition", "ShardProvider", "StartShards"]


@dataclass(frozen=True, kw_only=True)
class ShardPosition:
    """Where a shard is to start: ``count`` items of it are before ``cursor``."""

    shard: int
    cursor: Cursor
    count: int


class ShardProvider(ABC):
    """Produces the chunks of a set of shards, wherever they run."""

    @abstractmethod
    def pull(self, shard: int) -> Chunk:
        """The next chunk of ``shard``; waits for it. The chunk pulled before it has been used up."""

    @abstractmethod
    def close(self) -> None:
        """End the production of this epoch. Idempotent."""

    def interrupt(self) -> None:
        """Make a :meth:`pull` that waits in another thread return at once. Thread-safe."""
        return


StartShards: TypeAlias = Callable[[list[ShardPosition]], ShardProvider]


class MergeIterator(NodeIterator[Any]):
    """One item from each shard in turn; a shard that has ended leaves the rotation.

    State: the rotation, and for each shard a cursor and the number of its items handed out. Reading it asks nobody.
    """

    exact_after_error = True  # counts an item as it hands it out

    def __init__(self, node: DataPipe, context: Context, num_shards: int, start: StartShards) -> None:
        super().__init__(node, context)
        self._start = start
        self._provider: ShardProvider | None = None
        self._interrupted = False
        self._live = list(range(num_shards))
        self._turn = 0
        self._snapshots: list[bytes | None] = [None] * num_shards
        self._skips = [0] * num_shards
        self._counts = [0] * num_shards

    def get_state(self) -> dict[str, Any]:
        return {
            "live": list(self._live),
            "turn": self._turn,
            "counts": list(self._counts),
            "shards": [Cursor(snapshot, skip).to_state() for snapshot, skip in zip(self._snapshots, self._skips)],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        cursors = [Cursor.from_state(item) for item in state["shards"]]
        if len(cursors) != len(self._counts):
            raise StateError(f"the state has {len(cursors)} shards, this loader {len(self._counts)}")
        live, turn, counts = list(state["live"]), state["turn"], list(state["counts"])
        skips = [cursor.skip for cursor in cursors if cursor is not None]
        snapshots = [cursor.snapshot for cursor in cursors if cursor is not None]
        sound = (
            len(counts) == len(skips) == len(cursors)
            and all(type(number) is int and number >= 0 for number in (turn, *counts, *skips))
            and live == [shard for shard in range(len(cursors)) if shard in live]
            and turn < max(1, len(live))
        )
        if not sound:
            raise StateError(
                f"the state is damaged: of {len(cursors)} shards {live!r} go on, beginning with place {turn!r}, behind "
                f"{counts!r} items. Use an older checkpoint"
            )
        self._live, self._turn, self._counts = live, turn, counts
        self._snapshots, self._skips = snapshots, skips

    def run(self) -> Iterator[Any]:
        provider = self._provider = self._start(
            [
                ShardPosition(
                    shard=shard, cursor=Cursor(self._snapshots[shard], self._skips[shard]), count=self._counts[shard]
                )
                for shard in self._live
            ]
        )
        if self._interrupted:
            provider.interrupt()
        chunks = {shard: Chunk() for shard in self._live}
        used = dict.fromkeys(self._live, 0)
        while self._live:
            shard = self._live[self._turn]
            chunk, index = chunks[shard], used[shard]
            if index < len(chunk.items):
                item = chunk.items[index]
                chunk.items[index] = None  # the consumer alone decides how long an item lives
                used[shard] = index + 1
                self._advance(shard, chunk, index + 1)
                yield item
            elif chunk.error is not None:
                raise chunk.error
            elif chunk.ended:
                del self._live[self._turn]
                self._turn = self._turn % len(self._live) if self._live else 0
            else:
                chunks[shard], used[shard] = provider.pull(shard), 0

    def _advance(self, shard: int, chunk: Chunk, used: int) -> None:
        self._counts[shard] += 1
        if used == len(chunk.items) and chunk.snapshot is not None:
            self._snapshots[shard], self._skips[shard] = chunk.snapshot, 0
        else:
            self._skips[shard] += 1
        self._turn = (self._turn + 1) % len(self._live)

    def interrupt(self) -> None:
        self._interrupted = True
        if self._provider is not None:
            self._provider.interrupt()

    def close(self) -> None:
        super().close()
        if self._provider is not None:
            self._provider.close()
