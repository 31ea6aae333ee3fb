"""Worker threads for a ``DataLoader`` (``worker_method="thread"``) over a map-style dataset.

Runs in the user's process: batches are made in threads, dealt and handed out in the thread that iterates the loader.

``AssignedBatches`` decides which thread makes which batch, in what order batches are handed out and what the position
is, as it does for processes; so a state is the same, and loads under either. Here are those who are dealt to. Nothing
is pickled or copied: all threads read the one dataset object that the user has.

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
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torchpipe.ahead.call_threads import Call, CallThreads
from torchpipe.ahead.waiting import listed
from torchpipe.data import worker_info as thread_info
from torchpipe.data.assigned import AssignedBatches, ending_what_fails
from torchpipe.data.fetch import Failure, Fetch, TimedFetch, WorkerInitFn, make_worker_info, read_infos, set_worker_info
from torchpipe.data.figures import ThreadTimes
from torchpipe.data.order.sampling import Order
from torchpipe.data.parts import make_part
from torchpipe.data.sharing import NO_WINDOW, SharedBatches
from torchpipe.data.worker_info import BatchGenerators
from torchpipe.errors import StateMismatchError
from torchpipe.execution.figures import Made, ServiceFigures
from torchpipe.execution.shard import Chunk
from torchpipe.node.iterator import is_stateful
from torchpipe.stats.sheet import NodeSheet

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["SHARED", "THREAD_NAME", "ThreadWorkers", "WorkerStart", "begin_assigned", "check_arguments"]

THREAD_NAME = "DataLoader worker thread"
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
            raise Failure(error, f"in {THREAD_NAME} {self.worker}", note).error from None
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
            return Failure(error, f"in {THREAD_NAME} {worker}", note)


class ThreadWorkers:
    """Threads that make a batch of each entry they are dealt: ``Dealing``, as worker processes are."""

    def __init__(self, fetch: Fetch, beginnings: Sequence[WorkerStart], *, window: int) -> None:
        self._times = ThreadTimes(len(beginnings))
        self._makers = [_Maker(fetch, beginning, self._times) for beginning in beginnings]
        self._threads = CallThreads(THREAD_NAME, [maker.begin for maker in self._makers])
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
