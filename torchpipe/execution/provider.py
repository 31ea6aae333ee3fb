"""What produces the chunks of shards, as a merge sees it. Runs in the consumer's process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torchpipe.execution.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["ShardPosition", "ShardProvider", "StartShards"]


@dataclass(frozen=True, kw_only=True)
class ShardPosition:
    """Where a shard of a branch is to start: ``count`` items of it are before ``cursor``."""

    shard: int
    cursor: Cursor
    count: int
    branch: int = 0
    lane: int


class ShardProvider(ABC):
    """Produces the chunks of a set of lanes, wherever they run."""

    rebuild_s = 0.0  # how long it took so far to rebuild items from what other processes have sent

    @abstractmethod
    def pull(self, lane: int) -> Chunk:
        """The next chunk of ``lane``; waits for it. The chunk pulled before it has been used up.

        Called by one thread for each branch, so by several at a time if the main section has several feed threads.
        """

    def pull_any(self, lanes: Sequence[int]) -> tuple[int, Chunk]:
        """(a lane, its next chunk) of whichever of ``lanes`` has one first, as :meth:`pull`."""
        return lanes[0], self.pull(lanes[0])

    @abstractmethod
    def close(self) -> None:
        """End the production of this epoch. Idempotent."""

    def interrupt(self) -> None:
        """Make a :meth:`pull` that waits in another thread return at once. Thread-safe."""
        return


StartShards: TypeAlias = Callable[[list[ShardPosition]], ShardProvider]
