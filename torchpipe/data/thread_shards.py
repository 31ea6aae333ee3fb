"""Worker threads for a ``DataLoader`` over an iterable dataset: the shards of a graph, each produced in a thread.

Runs in the user's process. The rotation, the position and the form of a state are those of any reading service.

Each worker has a shallow copy of the dataset, so that what it sets in itself is its own and its data are shared, and
an iterator, ``iter(dataset)`` called in its thread, where ``get_worker_info()`` says which worker it is. These are
refused: a dataset that is its own iterator, one with a state of its own, and nodes of torch's, of which two iterators
cannot be read at once.

A position in a dataset of the user's is a count of batches, and is reached by making those batches again: only so are
the generators of ``get_worker_info().rng``, which are seeded for each batch, where they were. Graphs of torchpipe's
nodes, which draw from streams of their own, have snapshots as everywhere.

``threads`` and ``call_threads`` say who owns what and how each wait ends; ThreadShards owns the threads of its epoch.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from torchpipe.ahead.call_threads import Call, CallThreads
from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.data.fetch import Failure
from torchpipe.data.figures import ThreadTimes
from torchpipe.data.thread_batches import THREAD_NAME, WorkerStart
from torchpipe.data.worker_info import BatchGenerators
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.execution.provider import ShardProvider
from torchpipe.execution.reading_service import EpochStart, ShardedReadingService
from torchpipe.execution.service_figures import ServiceFigures
from torchpipe.execution.shard import Chunk, InitFn, Shard
from torchpipe.node.datapipe import IterDataPipe
from torchpipe.node.iterator import has_become_shorter, is_stateful
from torchpipe.node.traits import DataPipe, walk
from torchpipe.state import Cursor, SnapshotPolicy
from torchpipe.values import kept_of

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["ThreadReadingService", "ThreadShards", "iterable_service"]


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
            trace = self._measured().trace_shard() if self.measuring else None
            shard = Shard(
                self._graphs.of(spec),
                spec,
                branch=branch,
                policy=policy,
                manage_random=False,
                trace=trace,
                on_left_out=partial(self._tell_left_out, spec.shard),
            )
            self._measured().follow(shard)
            producers[lane] = _Producer(shard, cursor, start, generators[thread], partial(self._times.during, thread))
        begins = [partial(beginning, drawn) for beginning, drawn in zip(self._beginnings, generators)]
        return ThreadShards(producers, CallThreads(THREAD_NAME, begins), window=self._window, timeout_s=self._timeout_s)


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
            chunk.error = Failure(chunk.error, f"in {THREAD_NAME} {self.number}", note).error
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
