"""What a reading service tells of the processes that it runs. Pure data."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchpipe.stats.model import Event, NodeStats, ProcessStats, QueueStats, Section
from torchpipe.stats.nodes import Made

__all__ = ["ServiceFigures", "ServiceStats", "event"]


@dataclass(frozen=True, kw_only=True)
class ServiceStats:
    """What has happened in the processes of a service, over its whole life.

    ``restarts`` processes have died and been replaced; ``processes`` are alive just now. As many as
    ``longest_dispatch_buffer`` dispatched items have waited for one shard while others starved (0: fewer than 256).
    """

    restarts: int
    processes: int
    longest_dispatch_buffer: int


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
    made: Mapping[Section, tuple[Made, ...]] = field(default_factory=dict)  # what ``nodes`` are to be filled with


def event(kind: Any, process: str, text: str) -> Event:
    """That it happened now."""
    return Event(at=time.time(), kind=kind, process=process, text=text)
