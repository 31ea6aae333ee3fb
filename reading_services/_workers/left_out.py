"""What a process leaves out because of an error, until the main process is told. Runs in workers and the dispatcher.

It is told with the chunk that the item is missing from: what is made again, after a death or for a resume, is then not
told again.
"""

from __future__ import annotations

import time

from reading_services._transport.channel import Channel
from reading_services._transport.messages import Skipped
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

    def send(self, channel: Channel) -> None:
        """Tell of all that were noted."""
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            channel.send(message)

    def forget(self) -> None:
        """They are of an epoch that is over."""
        self._waiting.clear()
