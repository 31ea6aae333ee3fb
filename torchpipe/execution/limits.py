"""The limits on how far workers run ahead, and on their deaths. Data, in the user's process."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerLimits"]


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """``window``: messages that each shard may be ahead; ``window_bytes``: bytes, if that is more than two messages.

    ``max_deaths``: at one item, which is given up then; ``max_restarts``: how many workers may be replaced (None: any
    number). ``torch_wording``: messages say batch and worker, as torch's loader does, for item and shard.
    """

    window: int = 2
    window_bytes: int = 8 << 20
    max_deaths: int = 3
    max_restarts: int | None = None
    torch_wording: bool = False

    def spent(self, restarts: int) -> bool:
        """True once as many workers have been replaced as may be."""
        return self.max_restarts is not None and restarts >= self.max_restarts
