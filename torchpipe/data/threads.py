"""Worker threads for a ``DataLoader`` (``worker_method="thread"``).

Runs in the user's process: batches are made in threads, dealt and handed out in the thread that iterates the loader.

**Map-style datasets.** ``AssignedBatches`` decides which thread makes which batch, in what order batches are handed out
and what the position is, as it does for processes; so a state is the same, and loads under either. Here are those who
are dealt to. Nothing is pickled or copied: all threads read the one dataset object that the user has.

Who owns what
    CallThreads    owns the threads (``call_threads`` says how they end, and how each wait does)
    ThreadWorkers  owns those, what has been dealt and is not begun, and the results that have not been pulled: the
                   thread that iterates the loader deals, that one or a device stage's pulls. It belongs to an epoch's
                   ``AssignedBatches``, or, with ``persistent_workers``, to the loader
    _Maker         one for each thread: its generators and what ``get_worker_info()`` says there

How each wait ends
    a thread waits for work    something is dealt, once there is room; the workers are closed
    pull_any waits for a batch  it is made, or has failed; the timeout; interrupt()
    room                       at most ``window`` batches a thread are being made or ready: one is pulled, one is begun

Global random states are a process's, and cannot be a thread's. So they are left alone, and what a dataset draws from
them is not reproducible; ``get_worker_info().rng`` has generators of the thread's own, seeded for each batch.

**Iterable datasets** are the shards of a graph, each produced in a thread. The rotation, the position and the form of a
state are those of any reading service.

Each worker has a shallow copy of the dataset, so that what it sets in itself is its own and its data are shared, and an
iterator, ``iter(dataset)`` called in its thread, where ``get_worker_info()`` says which worker it is. These are
refused: a dataset that is its own iterator, one with a state of its own, and nodes of torch's, of which two iterators
cannot be read at once.

A position in a dataset of the user's is a count of batches, and is reached by making those batches again: only so are
the generators of ``get_worker_info().rng``, which are seeded for each batch, where they were. Graphs of torchpipe's
nodes, which draw from streams of their own, have snapshots as everywhere.

``threads`` and ``call_threads`` say who owns what and how each wait ends; ThreadShards owns the threads of its epoch.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torchpipe.ahead.call_threads import Call, CallThreads
from torchpipe.ahead.waiting import listed
from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.data import worker_info as thread_info
from torchpipe.data.assigned import AssignedBatches, ending_what_fails
from torchpipe.data.fetch import (
    Failure,
    Fetch,
    TimedFetch,
    WorkerInitFn,
    make_part,
    make_worker_info,
    read_infos,
    set_worker_info,
)
from torchpipe.data.figures import ThreadTimes
from torchpipe.data.order.sampling import Order
from torchpipe.data.sharing import NO_WINDOW, SharedBatches
from torchpipe.data.worker_info import BatchGenerators
from torchpipe.errors import StateMismatchError
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.execution.figures import Made, ServiceFigures
from torchpipe.execution.provider import ShardProvider
from torchpipe.execution.reading_service import EpochStart, ShardedReadingService
from torchpipe.execution.shard import Chunk, InitFn, Shard
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.host import Host
from torchpipe.node.iterator import has_become_shorter, is_stateful
from torchpipe.node.traits import DataPipe, walk
from torchpipe.state import Cursor, SnapshotPolicy
from torchpipe.stats.sheet import NodeSheet
from torchpipe.values import kept_of

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = [
    "SHARED",
    "ThreadReadingService",
    "ThreadShards",
    "ThreadWorkers",
    "WorkerStart",
    "begin_assigned",
    "check_arguments",
    "iterable_service",
]

_THREAD_NAME = "DataLoader worker thread"
SHARED = (
    "all worker threads draw from it, in any order: batches are not reproducible. Draw from get_worker_info().rng, "
    "which is seeded for each batch, or use worker processes"
)  # of a generator that the dataset holds


def check_arguments(worker_method: Any, worker_seeding: str, multiprocessing_context: Any) -> None:
    """Raises: ValueError for what threads cannot do."""
    if worker_method == "thread" and worker_seeding == "torch":
        raise ValueError(
            "worker_seeding='torch' seeds the global random states of worker processes, and threads share theirs: with "
            "worker_method='thread', draw from get_worker_info().rng, which is seeded for each batch"
        )
    if worker_method == "thread" and multiprocessing_context is not None:
        raise ValueError(
            f"worker_method='thread' starts no process: multiprocessing_context={multiprocessing_context!r}"
        )


def begin_assigned(
    loader: DataLoader[Any], order: Order, fetch: Fetch, epoch: int, position: dict[str, Any] | None
) -> AssignedBatches:
    """The batches of ``order``, made by the loader's threads: those that persist, or new ones.

    Raises: ValueError for a dataset with a state of its own, which threads would share; StateMismatchError for a state
    that has such a dataset's.
    """
    if is_stateful(fetch.dataset):
        raise ValueError(
            f"worker_method='thread' shares the dataset between threads, and this {type(fetch.dataset).__name__} has a "
            "state of its own (state_dict), which would belong to no batch. Use worker_method='multiprocessing', where "
            "each worker has its own, or num_workers=0"
        )
    position = position or {}
    if "lanes" in position or "dataset" in position:
        raise StateMismatchError(
            "the state has states of workers or of their datasets (worker_seeding='torch', or a dataset with a "
            "state_dict of its own), and threads have none: load it with worker_method='multiprocessing'"
        )
    pool = loader._pool
    if pool is None:
        beginnings = [
            WorkerStart(lane, loader.num_workers, order.base_seed, fetch.dataset, loader.worker_init_fn)
            for lane in range(loader.num_workers)
        ]
        pool = ThreadWorkers(fetch, beginnings, window=NO_WINDOW if fetch.by_sample else loader.prefetch_factor or 1)
        if loader.persistent_workers:
            loader._pool = pool
    with ending_what_fails(pool, keeps=loader.persistent_workers):
        pool.begin(order.base_seed, epoch, measure=loader.measuring)
        return (SharedBatches if fetch.by_sample else AssignedBatches)(loader, order, pool, position)


@dataclass(frozen=True)
class WorkerStart:
    """A thread becomes worker ``worker``: ``get_worker_info()`` says so there, and the user's function is called."""

    worker: int
    num_workers: int
    base_seed: int
    dataset: Any
    init_fn: WorkerInitFn | None

    def __call__(self, generators: BatchGenerators) -> Callable[[], None]:
        thread_info.enter(None, generators.rng)
        generators.seed(self.base_seed, 0, self.worker)  # what worker_init_fn draws; each batch begins anew
        info = make_worker_info(self.worker, self.num_workers, self.base_seed + self.worker, self.dataset)
        set_worker_info(info)
        try:
            if self.init_fn is not None:
                read_infos.add(self.worker)  # it may divide the dataset by its argument
                self.init_fn(self.worker)
        except BaseException as error:
            thread_info.leave()
            if not isinstance(error, Exception):
                raise
            note = "torchpipe: raised by worker_init_fn"
            raise Failure(error, f"in {_THREAD_NAME} {self.worker}", note).error from None
        return thread_info.leave


class _Maker:
    """Makes batches in one thread."""

    def __init__(self, fetch: Fetch, beginning: WorkerStart, times: ThreadTimes) -> None:
        self._plain = self._fetch = fetch
        self._beginning = beginning
        self._times = times
        self.sheet: NodeSheet | None = None
        self._generators = BatchGenerators()

    def begin(self) -> Callable[[], None]:
        return self._beginning(self._generators)

    def measure(self, wanted: bool) -> None:
        """Before an epoch: note what its steps take, or not."""
        self.sheet = NodeSheet.local(2) if wanted else None
        self._fetch = self._plain if self.sheet is None else TimedFetch(self._plain, self.sheet)

    def make(self, seed: int, epoch: int, entry: Any) -> Any:
        """The batch of ``entry``, or what a task is of, or a :class:`Failure` in its place."""
        with self._times.during(self._beginning.worker):
            return self._make(seed, epoch, entry)

    def _make(self, seed: int, epoch: int, entry: Any) -> Any:
        number, indices = (entry.key, entry.indices) if self._fetch.by_sample else entry
        try:
            if self._fetch.by_sample:
                return make_part(entry, self._fetch, None, partial(self._generators.seed, seed, epoch))
            self._generators.seed(seed, epoch, number)
            return self._fetch(indices)
        except Exception as error:
            self._fetch.explain(error, number, indices)
            worker = self._beginning.worker
            note = f"torchpipe: in worker {worker} (thread {threading.current_thread().name!r})"
            return Failure(error, f"in {_THREAD_NAME} {worker}", note)


class ThreadWorkers:
    """Threads that make a batch of each entry they are dealt: ``Dealing``, as worker processes are."""

    def __init__(self, fetch: Fetch, beginnings: Sequence[WorkerStart], *, window: int) -> None:
        self._times = ThreadTimes(len(beginnings))
        self._makers = [_Maker(fetch, beginning, self._times) for beginning in beginnings]
        self._threads = CallThreads(_THREAD_NAME, [maker.begin for maker in self._makers])
        self._window = max(1, window)
        self._assigned = [deque[Any]() for _ in beginnings]  # and not begun
        self._made = [deque[Call[Any]]() for _ in beginnings]  # in the making, or made and not pulled
        self._lock = threading.RLock()  # with a device stage, one thread deals and another one pulls
        self._epoch = (0, 0)
        self.usable = True
        self.rebuild_s = 0.0  # nothing is sent

    def begin(self, seed: int, epoch: int, *, measure: bool) -> None:
        """Begin an epoch."""
        self._epoch = (seed, epoch)
        self._times.begin_epoch()
        for maker in self._makers:
            maker.measure(measure)
        self._threads.resume()

    def figures(self) -> ServiceFigures:
        """The figures of the threads in this epoch, or in the last one."""
        processes = self._times.processes()
        made = [
            Made(maker.sheet.read(), 0, process.busy_share > 0.5)
            for maker, process in zip(self._makers, processes)
            if maker.sheet is not None
        ]
        queues = [
            self._times.queue(lane, sum(call.done for call in listed(calls)), self._window)
            for lane, calls in enumerate(self._made)
        ]
        return ServiceFigures(method="thread", processes=processes, queues=tuple(queues), made={"shard": tuple(made)})

    @property
    def num_workers(self) -> int:
        return len(self._makers)

    @property
    def processes(self) -> list[Any]:
        return []

    def deal(self, lane: int, entries: Sequence[Any], *, over: bool = False) -> None:
        with self._lock:
            self._assigned[lane].extend(entries)
            self._begin_some(lane)

    def _begin_some(self, lane: int) -> None:
        assigned, made = self._assigned[lane], self._made[lane]
        while assigned and len(made) < self._window:
            made.append(self._threads.submit(lane, partial(self._makers[lane].make, *self._epoch, assigned.popleft())))
        self._times.awaits(lane, credit=len(made) >= self._window)

    def outstanding(self, lane: int) -> int:
        return len(self._assigned[lane]) + len(self._made[lane])

    def pull_any(
        self, lanes: Collection[int], timeout_s: float | None = None, waited_s: float = 0.0
    ) -> tuple[int, Chunk]:
        """(which of ``lanes``, its next batch alone). Raises: RuntimeError, in torch's words, after ``timeout_s``.

        ``waited_s`` of these are over.
        """
        with self._lock:
            first = {self._made[lane][0]: lane for lane in lanes}
        try:
            call = self._threads.wait_first(first, timeout_s, waited_s)
        except BaseException:
            self.usable = False
            raise
        lane = first[call]
        error = call.error
        if error is not None:  # it stays: nothing can follow
            self.usable = False
            return lane, Chunk(error=error)
        with self._lock:
            self._made[lane].popleft()
            self._begin_some(lane)
        return lane, Chunk(items=[call.result()])

    def interrupt(self) -> None:
        self._threads.interrupt()

    def end_epoch(self) -> None:
        """Forget what was dealt; the threads stay. A batch in the making is dropped when it is made. Idempotent."""
        for lane, made in enumerate(self._made):
            for call in made:
                call.cancel()
            made.clear()
            self._assigned[lane].clear()
        self._times.rest()

    def close(self) -> None:
        """End all threads: 5 s at most, and those that are stuck in user code when that returns. Idempotent."""
        self.usable = False
        self.end_epoch()
        self._threads.close()


def iterable_service(loader: DataLoader[Any], shards: int, dataset: Any, base_seed: int) -> ThreadReadingService:
    """The reading service for the loader's threads. Raises: ValueError for what threads cannot share."""
    kind = type(dataset).__name__
    reason = None
    if not isinstance(dataset, TorchIterDataPipe):
        if is_stateful(dataset):
            reason = f"this {kind} has a state of its own (state_dict), which would belong to no worker"
        elif (goes_on := _what_goes_on(loader, dataset)) is not None:
            reason = goes_on
        elif isinstance(dataset, Iterator) and shards > 1:
            reason = f"this {kind} is its own iterator, which all workers would read: let __iter__ return a new one"
    elif shards > 1 and (theirs := [node for node in walk(dataset) if not _can_be_shared(node)]):
        reason = f"{type(theirs[0]).__name__} is a node of torch's, which can be read by one iterator at a time"
    if reason is not None:
        raise ValueError(
            f"worker_method='thread' shares the dataset between threads, and {reason}. "
            "worker_method='multiprocessing' gives each worker its own"
        )
    workers = min(loader.num_workers, shards)
    if workers < shards and loader.worker_init_fn is not None:
        raise ValueError(
            f"worker_init_fn is called in each worker's thread, and the state is of {shards} workers: load it with "
            f"num_workers={shards}"
        )
    own = None if isinstance(dataset, TorchIterDataPipe) else _OwnDatasets(dataset, shards)
    datasets = [dataset] * shards if own is None else own.copies
    init_fn = loader.worker_init_fn
    beginnings = [WorkerStart(lane, workers, base_seed, datasets[lane], init_fn) for lane in range(workers)]
    return ThreadReadingService(
        beginnings, shards, own, window=loader.prefetch_factor or 1, timeout_s=loader.timeout or None
    )


def _what_goes_on(loader: DataLoader[Any], dataset: Any) -> str | None:
    """The part of the dataset that threads would share, and that does not stay the same, in words; None if none."""
    before, kept = loader._shared, kept_of(dataset)
    kind = type(dataset).__name__
    generators = kept.generators()
    if generators:
        return f"this {kind} has a random generator ({generators[0]}), from which all would draw: draw from " + (
            "get_worker_info().rng"
        )
    # The attributes of the dataset itself are each thread's own: what the user sets between two epochs counts
    changed = [] if before is None else before.changed_in_place(except_for={id(dataset)})
    if changed:
        return f"{changed[0]}, which all share, has been changed since the epoch before began"
    loader._shared = kept
    return None


class _OwnDatasets:
    """Shallow copies of the dataset, one for each shard. Called as a service's ``init_fn``: the graph with its copy."""

    def __init__(self, dataset: Any, shards: int) -> None:
        self._dataset = dataset
        self.copies = [copy.copy(dataset) for _ in range(shards)]

    def __call__(self, graph: Any, info: WorkerInfo) -> Any:
        return copy.deepcopy(graph, {id(self._dataset): self.copies[info.worker_id]})


def _can_be_shared(node: Any) -> bool:
    return isinstance(node, IterDataPipe) or not isinstance(node, TorchIterDataPipe)


class ThreadReadingService(ShardedReadingService):
    """Produces each shard in a thread, ``window`` items ahead; a thread may have several. Functions draw from the
    process's global random states. Raises: ValueError for a graph with a dispatcher, which has one reader.
    """

    def __init__(
        self,
        beginnings: list[WorkerStart],
        num_shards: int,
        init_fn: InitFn | None,
        *,
        window: int,
        timeout_s: float | None,
    ) -> None:
        super().__init__(num_shards, init_fn, None, SnapshotPolicy)
        self._beginnings = beginnings
        self._times = ThreadTimes(len(beginnings))
        self._window = window
        self._timeout_s = timeout_s

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        checked = super().initialize(datapipe)
        if self.plan.dispatch is not None:
            raise ValueError(
                "worker_method='thread' cannot run a graph that dispatches items to workers (sharding_round_robin_"
                "dispatch, or a shuffle before sharding): use worker_method='multiprocessing'"
            )
        return checked

    def _service_figures(self) -> ServiceFigures:
        return ServiceFigures(workers=len(self._beginnings), method="thread", processes=self._times.processes())

    def _start_shards(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> ShardProvider:
        self._times.begin_epoch()
        users = not isinstance(self._beginnings[0].dataset, IterDataPipe)
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy.never if users else SnapshotPolicy
        producers = {}
        generators = [BatchGenerators() for _ in self._beginnings]
        for lane, cursor in cursors.items():
            branch, number = start.branch_and_shard(lane)
            spec = start.spec(number)
            thread = number % len(generators)
            shard = Shard(
                self._graphs.of(spec),
                spec,
                branch=branch,
                host=Host(
                    policy=policy,
                    trace=self._measured().trace_shard() if self.measuring else None,
                    on_left_out=partial(self._tell_left_out, spec.shard),
                ),
                manage_random=False,
            )
            self._measured().follow(shard)
            producers[lane] = _Producer(shard, cursor, start, generators[thread], partial(self._times.during, thread))
        begins = [partial(beginning, drawn) for beginning, drawn in zip(self._beginnings, generators)]
        return ThreadShards(
            producers, CallThreads(_THREAD_NAME, begins), window=self._window, timeout_s=self._timeout_s
        )


class _Producer:
    """Makes one shard's items, in its thread."""

    def __init__(
        self,
        shard: Shard,
        cursor: Cursor,
        start: EpochStart,
        generators: BatchGenerators,
        during: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._shard = shard
        self._cursor = cursor
        self._start = start
        self._generators = generators
        self._during = during
        self._begun = False
        self.number = shard.spec.shard

    def produce(self) -> Chunk:
        """The next item."""
        with self._during():
            return self._produce()

    def _produce(self) -> Chunk:
        if not self._begun:
            self._begun = True
            cursor = self._cursor
            self._shard.start(Cursor(cursor.snapshot, 0, cursor.count - cursor.skip))
            for done in range(cursor.skip):
                chunk = self._next()
                if not chunk.items and chunk.error is None:
                    chunk.error = has_become_shorter(done, cursor.skip)
                if chunk.error is not None:
                    return chunk
        return self._next()

    def _next(self) -> Chunk:
        start, shard = self._start, self._shard
        self._generators.seed(start.seed, start.epoch, shard.produced * start.num_shards + self.number)
        chunk = shard.produce(1)
        if isinstance(chunk.error, Exception):
            note = f"torchpipe: in worker {self.number}"
            chunk.error = Failure(chunk.error, f"in {_THREAD_NAME} {self.number}", note).error
        return chunk

    def close(self) -> None:
        self._shard.close()


class ThreadShards(ShardProvider):
    """The shards of an epoch. Belongs to the stream, which closes it."""

    def __init__(
        self, producers: dict[int, _Producer], threads: CallThreads, *, window: int, timeout_s: float | None
    ) -> None:
        self._producers = producers
        self._threads = threads
        self._window = max(1, window)
        self._timeout_s = timeout_s
        self._made = {lane: deque[Call[Chunk]]() for lane in producers}
        self._closed = False

    def _fill(self, lane: int) -> None:
        producer, made = self._producers[lane], self._made[lane]
        while len(made) < self._window:
            made.append(self._threads.submit(producer.number % len(self._threads), producer.produce))

    def pull(self, lane: int) -> Chunk:
        return self.pull_any((lane,))[1]

    def pull_any(self, lanes: Sequence[int]) -> tuple[int, Chunk]:
        if not self._threads.threads:
            for each in self._producers:
                self._fill(each)
        first = {self._made[lane][0]: lane for lane in lanes}
        call = self._threads.wait_first(first, self._timeout_s)
        lane = first[call]
        self._made[lane].popleft()
        chunk = call.result()
        if not chunk.ended and chunk.error is None:
            self._fill(lane)
        return lane, chunk

    def interrupt(self) -> None:
        self._threads.interrupt()

    def close(self) -> None:
        """End the threads; each closes its shards. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for made in self._made.values():
            for call in made:
                call.cancel()
            made.clear()
        if self._threads.threads:
            for producer in self._producers.values():
                self._threads.submit(producer.number % len(self._threads), producer.close)
        self._threads.close()
