"""The figures of the processes that a reading service runs. Pure data."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchpipe.execution.node_figures import Made
from torchpipe.stats.model import Event, NodeStats, ProcessStats, QueueStats, Section

__all__ = ["EventLog", "ServiceFigures", "ServiceStats"]

_MOST_EVENTS = 200
_MOST_SKIPS = 100  # besides: however many items are left out, no restart is forgotten for them


@dataclass(frozen=True, kw_only=True)
class ServiceStats:
    """The history of a service's processes, over its whole life.

    ``restarts`` processes have died and been replaced; ``processes`` are alive just now. ``longest_dispatch_buffer`` is
    the largest number of dispatched items that waited for one shard while others starved (0: fewer than 256).
    """

    restarts: int
    processes: int
    longest_dispatch_buffer: int


@dataclass(frozen=True, kw_only=True)
class ServiceFigures:
    """The figures of the epoch that is under way, or of the last one. Fields are those of ``LoaderStats``."""

    workers: int = 0
    method: str = "in process"
    dispatcher: bool = False
    restarts: int = 0
    longest_dispatch_buffer: int = 0
    nodes: tuple[NodeStats, ...] = ()
    processes: tuple[ProcessStats, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    events: tuple[Event, ...] = ()
    made: Mapping[Section, tuple[Made, ...]] = field(default_factory=dict)  # what ``nodes`` are to be filled with


class EventLog:
    """The latest events; the oldest go where there are very many. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may ask for the figures
        self._events = deque[Event](maxlen=_MOST_EVENTS)
        self._skips = deque[Event](maxlen=_MOST_SKIPS)

    def tell(self, kind: Any, process: str, text: str) -> None:
        """That it happened now."""
        with self._lock:
            self._events.append(Event(at=time.time(), kind=kind, process=process, text=text))

    def skipped(
        self, process: str, shard: int | None, node: str, error: str, item: str, at: float | None = None
    ) -> None:
        """That an item was left out, now or ``at`` some time."""
        where = "" if shard is None else f" of shard {shard}"
        text = f"{node}{where} left out an item: {error}" + (f" (for {item})" if item else "")
        happened_at = time.time() if at is None else at
        with self._lock:
            self._skips.append(
                Event(at=happened_at, kind="skip", process=process, text=text, node=node, shard=shard, error=error)
            )

    def read(self) -> tuple[Event, ...]:
        """In the order in which it happened."""
        with self._lock:
            return tuple(sorted((*self._events, *self._skips), key=lambda event: event.at))
