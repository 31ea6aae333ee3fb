"""What a reading service tells of the processes that it runs. Pure data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torchpipe.stats.model import Event, NodeStats, ProcessStats, QueueStats

__all__ = ["ServiceFigures", "event"]


@dataclass(frozen=True, kw_only=True)
class ServiceFigures:
    """Of the epoch that is under way, or the last one. Fields are those of ``LoaderStats``."""

    workers: int = 0
    method: str = "in process"
    restarts: int = 0
    longest_dispatch_buffer: int = 0
    nodes: tuple[NodeStats, ...] = ()
    processes: tuple[ProcessStats, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    events: tuple[Event, ...] = ()


def event(kind: Any, process: str, text: str) -> Event:
    """That it happened now."""
    return Event(at=time.time(), kind=kind, process=process, text=text)
