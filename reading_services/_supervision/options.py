"""What a supervisor is told when it is made: limits, and the dispatched part of a graph. Runs in the main process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reading_services._transport.graph_image import GraphImage

__all__ = ["DispatchPart", "WorkerLimits"]


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """How far workers run ahead (``window`` messages each), and what is done about those that die.

    ``max_deaths``: at one position, which is given up then; ``max_restarts``: how many may be replaced (None: any
    number); ``silent_s``: after how long without a sign of life one is killed (None: never).
    """

    window: int = 2
    window_bytes: int = 8 << 20
    silent_s: float | None = None
    max_deaths: int = 3
    max_restarts: int | None = None
    batches: bool = False  # are items what users of torch's loader call batches, and shards their workers?

    def spent(self, restarts: int) -> bool:
        """Have as many processes been replaced as may be?"""
        return self.max_restarts is not None and restarts >= self.max_restarts


@dataclass(frozen=True, kw_only=True)
class DispatchPart:
    """The dispatched part of a graph: its branch, its image for its process, its nodes' names by their numbers."""

    branch: int
    graph: GraphImage
    node_names: Mapping[int, str]
