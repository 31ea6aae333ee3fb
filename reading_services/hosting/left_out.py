"""What a place leaves out because of an error, until the main process is told.

It is told with the chunk that the item is missing from: what is made again, after a death or for a resume, is then not
told again.
"""

from __future__ import annotations

import time

from reading_services.engine.messages import Report, Skipped
from torchpipe.state import LeftOut

__all__ = ["LeftOutItems"]


class LeftOutItems:
    """Those of the chunk that is being made."""

    def __init__(self) -> None:
        self._waiting: list[Skipped] = []

    def note(self, shard: int | None, missing: LeftOut) -> None:
        """An item was left out just now."""
        self._waiting.append(
            Skipped(at=time.time(), shard=shard, node=missing.node, error=missing.error, item=missing.item)
        )

    def take(self) -> list[Report]:
        """All that were noted, once."""
        waiting, self._waiting = self._waiting, []
        return [*waiting]
