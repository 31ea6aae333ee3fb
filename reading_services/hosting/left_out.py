"""What a worker leaves out because of an error, until the main process is told.

It is told with the chunk that the item is missing from: what is made again, after a death, a move or for a resume, is
then not told again.
"""

from __future__ import annotations

import time
from dataclasses import replace

from reading_services.engine.messages import Report, Skipped
from torchpipe.state import LeftOut

__all__ = ["LeftOutItems"]


class LeftOutItems:
    """Those of the chunk that is being made."""

    def __init__(self) -> None:
        self._waiting: list[Skipped] = []

    def note(self, shard: int | None, missing: LeftOut, *, lane: int = -1) -> None:
        """An item was left out just now."""
        self._waiting.append(
            Skipped(at=time.time(), lane=lane, shard=shard, node=missing.node, error=missing.error, item=missing.item)
        )

    def take(self, generation: int = 0) -> list[Report]:
        """All that were noted, once, in this generation."""
        waiting, self._waiting = self._waiting, []
        return [replace(item, generation=generation) for item in waiting]
