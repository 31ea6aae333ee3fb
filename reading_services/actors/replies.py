"""The answers of actors; their items travel pickled, with large buffers beside the pickle.

Ray copies an answer once into shared memory, and between nodes where need be. In the driver it is read-only; the items
are rebuilt over copies of their own, so that they can be written to.

The progress of an actor, and the parts of its time: noted by its working thread, read by the other one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from reading_services.engine.messages import Report
from reading_services.engine.workers import Arrival, Figures, WorkerCounters
from reading_services.hosting.shards import dump_items, load_items
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, load_error
from torchpipe.node.host import Trace
from torchpipe.stats.sheet import AWAITING_INPUT, MAKING, NodeSheet, Times, TimeSheet
from torchpipe.stats.tracing import Tracing

__all__ = ["NOT_YET", "ActorProgress", "Begun", "Hello", "Packed", "Portion", "Produced", "Status", "arrival_of"]

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


class ActorProgress:
    """A hosting ``ProgressNote``, for ``nodes`` nodes."""

    def __init__(self, nodes: int) -> None:
        self.times = TimeSheet([0] * TimeSheet.SIZE)
        self._sheet = NodeSheet([0] * (nodes * NodeSheet.STRIDE))
        self._reports: deque[Report] = deque()
        self._at = -1  # the item that is being made, while each is announced
        self._to_announce = 0  # how many more are to be announced
        self._announces = False
        self._seen = threading.Event()

    def announce_items(self, count: int) -> None:
        """Begin the next so many items, one by one, only once the driver has seen which it is; 0: do not wait."""
        self._to_announce, self._announces = count, count > 0
        self._seen.set()

    def skipping_to(self, lane: int, index: int) -> None:
        """Nobody could read it after a death: the driver goes by what it has asked for."""

    def making(self, lane: int, index: int, count: int) -> int:
        """Announce the item that is about to be made, if it is wanted, and wait until the driver has seen it."""
        if self._to_announce > 0:
            self._to_announce -= 1
            self._seen.clear()
            self._at = index
            if self._announces:  # else it was called off before
                self._seen.wait()
        return count

    def remade(self) -> None:
        """The actor counts no items made again: the driver goes by its requests."""

    def idle(self) -> None:
        """Nothing is being made."""
        self._at = -1

    def trace(self, *, note_steps: bool) -> Trace | None:
        return Tracing(self._sheet) if self.times.wanted else None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile, what is being made waits for something from elsewhere."""
        self.times.turn_to(AWAITING_INPUT)
        try:
            yield
        finally:
            self.times.turn_to(MAKING)

    def report(self, reports: list[Report]) -> None:
        """For whoever asks next."""
        self._reports.extend(reports)

    def figures(self) -> list[Figures]:
        return self._sheet.read() if self.times.wanted else []

    def status(self, seen: int) -> Status:
        """``seen``: the item that the driver knows of."""
        at = self._at
        if at >= 0 and seen == at:
            self._seen.set()
        reports = [self._reports.popleft() for _ in range(len(self._reports))]
        return Status(times=self.times.read(), nodes=self.figures(), reports=reports, at=at)
