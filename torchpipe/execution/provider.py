"""The producer of shards' chunks, as a merge sees it. Runs in the consumer's process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from torchpipe.errors import StateError
from torchpipe.execution.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["AHEAD", "ShardProvider", "StartShards"]


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

    def is_ahead(self, lane: int, count: int) -> bool:
        """True if ``lane`` has been pulled in this thread beyond ``count`` items."""
        return False

    def snapshot(self, lane: int, count: int) -> bytes | None:
        """The snapshot of ``lane`` after ``count`` items; None where nothing but all of them, made again, leads there.

        Called between two pulls. Raises: StateError if it stands elsewhere, or has no snapshot there.
        """
        raise StateError(AHEAD)

    def next_pass(self, lane: int, count: int) -> Cursor | None:
        """The start of ``lane``'s next pass, if this one is left where it stands, after ``count`` items; else None."""
        return None

    @abstractmethod
    def close(self) -> None:
        """End the production of this epoch. Idempotent."""

    def interrupt(self) -> None:
        """Make a :meth:`pull` that waits in another thread return at once. Thread-safe."""
        return


AHEAD = (
    "in this process, items are made ahead of those that were handed out, or none is made yet. Load a state that is "
    "not exact into a loader with worker processes, or into one without threads (prefetch_cnt, to_device, device=, "
    'worker_method="thread"), take an item, and save there'
)
"""Why a lane does not stand where it was asked for."""

StartShards: TypeAlias = Callable[[Mapping[int, Cursor]], ShardProvider]
"""Produces the lanes that are named from their cursors on."""
