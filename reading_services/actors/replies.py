"""The answers of actors; their items travel pickled, with large buffers beside the pickle.

Ray copies an answer once into shared memory, and between nodes where need be. In the driver it is read-only; the items
are rebuilt over copies of their own, so that they can be written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reading_services.engine.messages import Report
from reading_services.engine.workers import Arrival, Figures, WorkerCounters
from reading_services.hosting.items import dump_items, load_items
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, load_error
from torchpipe.stats.sheet import Times

__all__ = ["NOT_YET", "Begun", "Hello", "Packed", "Portion", "Produced", "Status", "arrival_of"]

NOT_YET = "not yet"
"""The answer of a dispatcher that has not begun the generation that a shard asks for."""


@dataclass(frozen=True)
class Packed:
    """Items as one pickle and the large buffers that it refers to; ``sizes`` are theirs, in bytes."""

    body: Any
    buffers: list[Any]

    @classmethod
    def of(cls, items: list[Any]) -> Packed:
        """Raises: whatever pickling an item raises."""
        body, buffers = dump_items(items)
        return cls(np.frombuffer(body, np.uint8), [np.frombuffer(buffer, np.uint8) for buffer in buffers])

    @property
    def sizes(self) -> tuple[int, ...]:
        return (len(self.body), *map(len, self.buffers))

    def open(self) -> list[Any]:
        """The items, over memory of their own. Raises: whatever rebuilding them raises."""
        return load_items(memoryview(self.body), [memoryview(bytearray(buffer)) for buffer in self.buffers])


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The actor can begin: the process and the node that it runs on, and the version of torchpipe there."""

    pid: int
    node_id: str
    host: str
    version: str
    error: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Produced:
    """A chunk of a lane, and what the actor has done so far. ``packed`` None: the lane is not at work here any more."""

    generation: int
    lane: int
    count: int = 0
    packed: Packed | None = None
    snapshot: bytes | None = None
    ended: bool = False
    error: bytes | None = None
    reports: Sequence[Report] = ()
    times: Times | None = None
    nodes: Sequence[Figures] = ()


@dataclass(frozen=True, kw_only=True)
class Begun:
    """An epoch has begun; ``failed`` has the lanes that cannot be started."""

    failed: Sequence[Produced] = ()
    reports: Sequence[Report] = ()


@dataclass(frozen=True, kw_only=True)
class Portion:
    """Dispatched entries for a shard; ``over``: nothing after them, because of ``error`` if there is one."""

    packed: Packed
    over: bool
    error: bytes | None


@dataclass(frozen=True, kw_only=True)
class Status:
    """The work of an actor so far, and its reports for the user; ``at``: an item that it is about to make."""

    times: Times
    at: int = -1
    nodes: Sequence[Figures] = ()
    reports: Sequence[Report] = ()

    def counters(self, pid: int) -> WorkerCounters:
        return WorkerCounters(self.times, list(self.nodes), pid)


@dataclass(slots=True, kw_only=True)
class _Arrived(Arrival):
    packed: Packed | None = None

    def open(self, shard: int) -> Chunk:
        packed, self.packed = self.packed, None
        try:
            self.items = [] if packed is None else packed.open()
        except Exception as error:
            add_note(
                error,
                f"torchpipe: one of the next {self.count} items of shard {shard} could not be rebuilt in the driver: "
                "its __reduce__ (of an exception: its args) gives arguments that its constructor refuses, or its class "
                "cannot be imported here. Define __reduce__, or turn it into plain data inside the pipeline",
            )
            return Chunk(error=error)
        return self


def arrival_of(produced: Produced) -> Arrival:
    """The chunk for the engine."""
    packed = produced.packed
    return _Arrived(
        count=produced.count,
        nbytes=0 if packed is None else sum(packed.sizes),
        snapshot=produced.snapshot,
        ended=produced.ended,
        error=None if produced.error is None else load_error(produced.error),
        packed=packed,
    )
