"""The seam: workers run shards, or, as the dispatcher, the dispatched part; the engine decides what each of them does.

A worker is a process of this machine, an actor on another one, or, in tests, an object in memory. The engine knows its
number, sends it messages and handles events; it never learns how a worker runs. Runs in the main process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from reading_services.engine.messages import Deal, Report, StartDispatch, StartEpoch
from torchpipe.execution.shard import Chunk
from torchpipe.stats.sheet import Figures, Times

__all__ = [
    "DISPATCHER",
    "Arrival",
    "ChunkArrived",
    "End",
    "Event",
    "Failed",
    "Figures",
    "Gone",
    "Late",
    "Leaving",
    "NoRoomHere",
    "Ready",
    "Reported",
    "Section",
    "Worker",
    "WorkerCounters",
    "WorkerPool",
    "Workplace",
]  # fmt: skip

DISPATCHER = -1
"""The number of the worker that hosts the dispatched part. The others count from 0."""


class Worker(Protocol):
    """A worker that was opened. Sending to one that has ended does nothing: an event tells of its end."""

    number: int
    name: str
    ready: bool
    """True once it has said that it can begin."""

    def begin(self, start: StartEpoch | StartDispatch, deals: Sequence[Deal] = ()) -> None:
        """Forget what it was at, and begin a generation; ``deals`` come first."""

    def grant(self, generation: int, lane: int, chunks: int) -> None:
        """The consumer has used up ``chunks`` more of a lane: it may produce as many more."""

    def deal(self, message: Deal) -> None:
        """More entries for a lane."""

    def end(self, generation: int) -> None:
        """Stop producing."""

    def counters(self) -> WorkerCounters | None:
        """The worker's counters so far. Asks nobody; None if they are not known."""


class WorkerPool(ABC):
    """Opens workers and lets go of them. One thread at a time waits; all else may be called by any thread.

    ``method``: how they start, in a word.
    """

    method = "memory"

    @abstractmethod
    def open(self, number: int) -> Worker:
        """Start the worker of this number. Raises: OSError if it cannot be started.

        Once :class:`Leaving` has come of one, its successor is opened beside it.
        """

    @abstractmethod
    def wait(self, timeout_s: float) -> list[Event]:
        """Wait for events, and return them. Events of one worker are in their order."""

    @abstractmethod
    def drop(self, worker: Worker) -> None:
        """Let go of a worker: after its end, or before, to let it end by itself. No event of it comes any more."""

    @abstractmethod
    def pending(self, worker: Worker) -> list[Event]:
        """The events of a worker that are known already, without a wait. The last is :class:`Gone` if it has ended."""

    def late_error(self, worker: Worker) -> Exception:
        """The error for a worker of which :class:`Late` has come: what it waits for, and what to do."""
        return TimeoutError(f"{worker.name} has not started in time")

    @abstractmethod
    def wake(self) -> None:
        """End a :meth:`wait` in another thread at once."""

    @abstractmethod
    def measure_nodes(self, wanted: bool) -> None:
        """Let workers time the nodes of passes that begin from now on, or not."""

    @abstractmethod
    def close(self) -> None:
        """End all workers. Idempotent."""

    def processes(self) -> list[Any]:
        """The processes or actors of workers just now, in the order of their numbers: each has a ``pid``."""
        return []

    def pids(self) -> list[int]:
        """Their process ids."""
        return [process.pid for process in self.processes()]


@dataclass(frozen=True)
class Section:
    """The work of a worker: the image of a part of the graph, and its nodes' names by the numbers that it notes."""

    image: Any
    node_names: Mapping[int, str]


class Workplace(ABC):
    """The kind of workers that the user asks for: a small frozen object that opens pools of them.

    ``method``: how they start, in a word; ``worker``: the name of one; ``kind``: that of its dispatcher. ``balances``:
    shards move to quicker workers. ``advice``: another way where a graph cannot be sent.
    """

    method: str
    worker: str
    kind: str
    balances = False
    advice = ""

    @abstractmethod
    def open_pool(
        self, shards: Section, dispatched: Section | None = None, *, silent_s: float | None = None
    ) -> WorkerPool:
        """A pool of workers here, none of which is started yet. ``silent_s``: of one that hangs (None: never)."""

    @abstractmethod
    def image(self, *parts: Any) -> Any:
        """``parts`` of a graph as workers here get them. Raises: whatever pickling them raises."""

    @abstractmethod
    def described(self, workers: int) -> str:
        """So many workers, in words."""

    def check(self) -> None:
        """Make sure that workers can be started here just now. Raises: what says why they cannot."""
        return

    def forget(self, image: Any) -> None:
        """No worker is to be started with it any more. Idempotent."""
        return


@dataclass(slots=True, kw_only=True)
class Arrival(Chunk):
    """A chunk that has arrived whole. Its ``count`` items are rebuilt when the consumer takes it: :meth:`open`."""

    count: int = 0
    nbytes: int = 0

    @property
    def over(self) -> bool:
        """True if nothing comes after it."""
        return self.ended or self.error is not None

    def open(self, shard: int) -> Chunk:
        """The chunk with its items, once. Items of ``shard`` that cannot be rebuilt become an error in their place."""
        return self


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a worker, and the items that it was at.

    ``own``: it brought about its end, by an exit or a crash; otherwise somebody else may have ended it. ``lane`` and
    ``items`` are those that it was making, or on its way to (``begun`` False); lane -1: none. Items that were begun
    together are given together: one of them may be to blame. ``node``: the one at work, if that is known.
    ``timed_out``: it was killed here, since it made no progress within the timeout.
    """

    cause: str
    own: bool
    lane: int = -1
    items: range = range(1)
    begun: bool = False
    node: str | None = None
    timed_out: bool = False
    pid: int | None = None
    exitcode: int | None = None


@dataclass
class WorkerCounters:
    """The counters of a worker since it was opened; ``nodes`` is empty where nodes are not timed."""

    times: Times
    nodes: list[Figures] = field(default_factory=list)
    pid: int = 0
    remade: int = 0  # items that it has made again, to come to where something stood

    def copy(self) -> WorkerCounters:
        copied = WorkerCounters(Times(), [Figures() for _ in self.nodes], self.pid)
        copied.add(self)
        return copied

    def since(self, before: WorkerCounters | None) -> WorkerCounters:
        """The difference since ``before`` was read, or everything if that is None."""
        since = self.copy()
        if before is not None:
            since.add(before, -1)
        return since

    def add(self, other: WorkerCounters, sign: int = 1) -> None:
        self.times.add(other.times, sign)
        self.remade += sign * other.remade
        for mine, theirs in zip(self.nodes, other.nodes):
            mine.add(theirs, sign)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker can begin."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """Items of a lane have come."""

    worker: Worker
    generation: int
    lane: int
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Reported:
    """The worker has something to tell the user."""

    worker: Worker
    report: Report


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on, for this reason, and will end. Starting another one would be of no use."""

    worker: Worker
    error: BaseException


@dataclass(frozen=True, slots=True)
class Gone:
    """The worker has ended."""

    worker: Worker
    end: End


@dataclass(frozen=True, slots=True)
class Leaving:
    """The worker will end soon: another one is to be ready by then."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class Late:
    """The worker has not started for as long as it may. Comes again and again: what it means is not decided here."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class NoRoomHere:
    """The worker has been put where there is no room for it, while there is elsewhere: it is to be opened anew."""

    worker: Worker


Event: TypeAlias = Ready | ChunkArrived | Reported | Failed | Gone | Leaving | Late | NoRoomHere
