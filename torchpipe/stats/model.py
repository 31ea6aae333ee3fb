"""The figures of a loader at work, as data: frozen dataclasses of plain values.

Made in the user's process by ``loader.stats()``; views, exports and the advice read nothing else. Seconds are
wall-clock unless a field says otherwise, and sums over all processes or threads where several do the same. ``None``
says that something is not known (not measured, or not on this system): never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from torchpipe.rings import from_ring, is_installed
from torchpipe.stats.sheet import Doing

__all__ = [
    "BalanceStats",
    "ConsumerStats",
    "CostStats",
    "Doing",
    "Event",
    "FeedStats",
    "LoaderStats",
    "MergeStats",
    "Moment",
    "NodeStats",
    "ProcessStats",
    "QueueStats",
    "Section",
    "StageStats",
    "rebuilt_s",
]

Section: TypeAlias = Literal["dispatch", "shard", "main"]
"""A part of the graph: run once before items are dealt, once for each shard, or once in the user's process."""


@dataclass(frozen=True, slots=True)
class FeedStats:
    """Counters of one pass: who waited for whom, how much was moved, what lies where just now. Times in seconds.

    ``consumer_wait_s`` is what the training loop lost to this stage: while it grows, something below is too slow. That
    is the source if ``pull_s`` grows with it, or the transfer (``transfer_s``, summed over its threads).
    ``feeder_wait_s`` grows when the consumer is the slow one, which is how it should be. ``new_shapes`` counts batches
    whose shapes or dtypes had not occurred in this pass before, besides the first: each costs XLA a compilation.
    """

    items: int
    ready: int  # batches on the device or on their way, besides the consumer's
    consumer_wait_s: float
    feeder_wait_s: float
    pull_s: float = 0.0  # 0 where nothing is moved
    transfer_s: float = 0.0
    moved_bytes: int = 0
    ready_bytes: int = 0
    waiting: int = 0  # batches that wait on the host
    waiting_bytes: int = 0
    new_shapes: int = 0
    dropped: int = 0  # batches left out for their shapes
    syncs: int = 0  # executions that this stage started
    waits: int = 0  # times that it let the consumer wait for the device


@dataclass(frozen=True, kw_only=True)
class ConsumerStats:
    """The user's loop, since the first item of this iterator was handed out."""

    items: int = 0  # handed out by this iterator
    elapsed_s: float = 0.0  # from the first item on until now, or to the end of the epoch
    wait_s: float = 0.0  # of which it waited for data inside next()
    start_s: float | None = None  # from iter() to the first item; None: there is none yet

    @property
    def own_s(self) -> float:
        """Seconds in the user's own code: all that is not waiting."""
        return max(0.0, self.elapsed_s - self.wait_s)

    @property
    def wait_share(self) -> float:
        """The part of the time that the loop waited for data, 0 to 1."""
        return min(1.0, self.wait_s / self.elapsed_s) if self.elapsed_s else 0.0

    @property
    def items_per_s(self) -> float:
        return max(0, self.items - 1) / self.elapsed_s if self.elapsed_s else 0.0


@dataclass(frozen=True, kw_only=True)
class NodeStats:
    """One node of the graph, over all the processes that run it.

    ``exact`` figures were timed item by item; others are estimates: ``self_s`` from samples of what the processes were
    at, ``items`` from what the nodes after it made of them.
    """

    number: int  # as explain() has it, from 1 on
    name: str
    section: Section
    inputs: tuple[int, ...] = ()  # the numbers of the nodes that it reads
    repeated: bool = False  # every shard does all of this: more shards do not divide its work
    divided_by: str = ""  # every shard reads all that it reads: the form behind it that lets each read its own part
    processes: int = 0  # how many run it
    busy: int = 0  # in how many of these it is the step that takes the most time, and more than waiting does
    items: int | None = None  # that it handed on
    self_s: float | None = None  # seconds in the node itself, without its inputs
    mean_s: float | None = None  # of that for each item
    p90_s: float | None = None  # nine in ten items took less
    p99_s: float | None = None
    errors: int = 0  # exceptions that it raised
    skipped: int = 0  # items that it left out because of an error
    bytes: int | None = None  # of the items that it handed on, as a sample of them says; None where a part has no size
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class ProcessStats:
    """A process (or a worker thread of this one), since the epoch began, with those that it was restarted in place of.

    The times add up to the epoch's so far, but for what it was starting or not there.
    """

    name: str  # "main", "worker 0", "dispatcher", "thread 0"
    kind: Literal["main", "worker", "dispatcher", "thread"]
    pid: int
    doing: Doing = "idle"
    doing_s: float = 0.0  # how long it has been at that
    shards: tuple[int, ...] = ()
    restarts: int = 0  # how often it has died and been replaced
    items: int = 0  # that came from it
    chunks: int = 0  # messages with items in them
    bytes: int = 0  # that it sent, of items
    making_s: float = 0.0
    sending_s: float = 0.0
    credit_wait_s: float = 0.0  # for the consumer to use up what was sent
    input_wait_s: float = 0.0  # for what other processes deal
    cpu_s: float | None = None  # CPU seconds of the process, all its threads
    memory_bytes: int | None = None  # resident; pages that processes share count in each
    private_bytes: int | None = None  # of these, in pages that no other process has: looked at each 10 s

    @property
    def busy_s(self) -> float:
        return self.making_s + self.sending_s

    @property
    def busy_share(self) -> float:
        """The part of its time that it was at work, 0 to 1."""
        whole = self.busy_s + self.credit_wait_s + self.input_wait_s
        return self.busy_s / whole if whole else 0.0


@dataclass(frozen=True, kw_only=True)
class QueueStats:
    """A queue of items: who fills it, who empties it, how full it is."""

    name: str  # "shard 0", "ToDevice host", "ToDevice device", "dispatched to shard 0"
    source: str  # a process or stage by its name
    target: str
    unit: Literal["items", "chunks", "batches"]
    fill: int = 0
    limit: int | None = None
    bytes: int | None = None
    source_wait_s: float | None = None  # waited for room
    target_wait_s: float | None = None  # waited for something to come


@dataclass(frozen=True, kw_only=True)
class MergeStats:
    """A merge of shards in this process."""

    branch: int = 0
    wait_s: float = 0.0  # in all it did to have items at hand
    shard_wait_s: tuple[float, ...] = ()  # of which it waited for each shard, whose turn it was
    rebuild_s: float = 0.0  # of which it rebuilt items from what had been sent


def rebuilt_s(merges: Iterable[MergeStats]) -> float:
    """Seconds that this process spent on rebuilding items: each merge tells what all of them have."""
    return max((merge.rebuild_s for merge in merges), default=0.0)


@dataclass(frozen=True, kw_only=True)
class StageStats:
    """A stage of this process that runs ahead in threads (``to_device``, ``prefetch``); ``node``: its node's number."""

    name: str
    node: int
    device: bool
    threads: int  # that move batches
    feed: FeedStats


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, for logs and timelines."""

    at: float  # time.time()
    kind: Literal[
        "restart", "lost", "replay", "stall", "growth", "epoch", "new shape", "tuned", "skip", "uneven", "memory"
    ]
    process: str
    text: str
    node: str = ""  # of a skip: the name of the node that raised,
    shard: int | None = None  # in which shard (None: before they are dealt, or after the merge),
    error: str = ""  # and what: the type, and its text


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A point of the timeline: both count from the iterator's begin to ``at_s``, which does too."""

    at_s: float
    items: int
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class CostStats:
    """One part of what samples cost: what each rank has had of it, in the units of ``Balance(cost)``."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class BalanceStats:
    """The plan of ``Ranks(balance=...)`` in this epoch since ``iter()``: as far as batches were dealt.

    ``slowest_without`` and ``slowest`` are predictions from costs alone: the cost of the slowest rank of each step,
    over the mean of the ranks, in the order without a plan and with it. 1.0 is even.
    """

    steps: int
    shadow: bool  # nothing was changed: ``costs`` are those without a plan
    slowest_without: float
    slowest: float
    costs: tuple[CostStats, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """One epoch of a loader: the live one's, or the last one's if it has ended. ``str()`` is for people."""

    state: Literal["new", "running", "finished", "closed"]
    measured: bool  # True if nodes have figures
    epoch: int
    delivered: int  # items of the epoch that were handed out, those before a restore included
    total: int | None  # items of the epoch, where known
    began_at: float | None  # time.time() when iter() was called
    workers: int  # processes or threads; 0: everything happens in the loop's own
    shards: int
    method: str  # "in process", "fork", "spawn", "forkserver", "thread"
    cores: int  # that this process may use
    others: float | None = None  # the part of all the machine's cores that other programs used meanwhile, 0 to 1
    ranks: int = 1  # that take steps together
    dispatcher: bool = False  # has the dispatch section a process of its own, where there are workers? no: a sampler
    restarts: int = 0  # processes that died and were replaced, in the service's whole life
    longest_dispatch_buffer: int = 0  # dispatched items that waited for one shard while others starved, at most
    state_bytes: int | None = None  # of the state that was saved last; None before the first one
    left_over: int = 0  # items that the end of an epoch with uneven="drop" has left out, of all ranks: at least so many
    balance: BalanceStats | None = None
    consumer: ConsumerStats = ConsumerStats()
    merges: tuple[MergeStats, ...] = ()
    stages: tuple[StageStats, ...] = ()  # the one nearest to the loop first
    nodes: tuple[NodeStats, ...] = ()
    processes: tuple[ProcessStats, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    events: tuple[Event, ...] = ()  # the latest ones
    timeline: tuple[Moment, ...] = ()

    @property
    def worker_processes(self) -> list[ProcessStats]:
        """The processes that make items for this one: workers, threads among them."""
        return [process for process in self.processes if process.kind in ("worker", "thread")]

    # What the ring ``observe`` says of the figures.

    @cached_property
    def advice(self) -> Any:
        """Who is the slowest, in one sentence, and what to change: :class:`~torchpipe.observe.Advice`."""
        return from_ring("torchpipe.observe.advice:advise")(self)

    def to_json(self, indent: int | None = None) -> str:
        """The figures, and the advice."""
        return from_ring("torchpipe.observe.text:stats_to_json")(self, indent)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, text: str) -> LoaderStats:
        """The figures that :meth:`to_json` gave. Raises: TypeError or KeyError if ``text`` is something else."""
        return from_ring("torchpipe.observe.text:stats_from_json")(text)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        return str(from_ring("torchpipe.observe.text:as_text")(self)) if is_installed("observe") else repr(self)
