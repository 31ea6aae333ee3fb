"""The supervisor: what a reading service and a loader see of the engine, and the one wait for what workers do.

Runs in the main process, without a thread of its own: in the threads that consume the stream. One of them at a time
waits for the workers, without the lock; the others wait for it to say that something has changed. All else happens
under the lock, except for :meth:`Supervisor.interrupt`. The wait for the workers ends now and then, for plans that are
due.

::

    Supervisor     the lock, the wait, the calls from outside
    Staffing       how many workers host the shards, and which hosts which
    Crew           the workers: which are open, what happens to them, and what each begins
    Lanes          how far each lane has come, who hosts it, how it begins

Each of them knows those below it. None of them has a thread, a lock or a wait.

:class:`UnfinishedCalls` knows whether a call was cut short. Ctrl-C, or a signal handler that raises, may leave the
supervisor between two halves of a message: nobody can say then what has been received and what was sent. Its workers
are not used again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from reading_services.engine.crew import Crew
from reading_services.engine.lanes import Lanes
from reading_services.engine.ledger import LaneEntries, ShardLedger
from reading_services.engine.messages import Deal
from reading_services.engine.policy import Policy
from reading_services.engine.staffing import Staffing
from reading_services.engine.workers import DISPATCHER, Arrival, Worker, WorkerCounters, WorkerPool
from torchpipe.errors import IteratorInvalidated
from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.limits import WorkerLimits
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import Chunk
from torchpipe.state import Cursor

__all__ = ["Supervisor", "UnfinishedCalls"]


class UnfinishedCalls:
    """``with calls: ...`` around each call, which does not call another one.

    Any exception counts, this class's own instructions included: a handler's may be a TimeoutError as well as a
    KeyboardInterrupt. What a call has to say when nothing is half done, it raises outside of the ``with``.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()  # threads

    @property
    def broken(self) -> bool:
        """True if a call was left in its midst, and while one goes on in another thread."""
        return bool(self._inside)

    def __enter__(self) -> None:
        self._inside.add(threading.get_ident())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._inside.discard(threading.get_ident())


_CLOSED_ELSEWHERE = "the loader was closed from another thread while the next item was awaited"
_LOOK_S = 1.0  # a wait as long as this is begun anew: no wait notices a Ctrl-C that came in the instant before it


class Supervisor:
    """Lets at most ``most`` workers host shards over many epochs; with ``dispatch_branch``, one more runs what is
    dispatched to that branch. ``policies`` say how many, and which hosts which. ``close`` ends them. ``restarts``: of
    workers that were replaced before this one began.
    """

    def __init__(
        self,
        pool: WorkerPool,
        most: int,
        limits: WorkerLimits,
        policies: Sequence[Policy] = (),
        *,
        dispatch_branch: int = -1,
        restarts: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        first = min((policy.first_workers(most) for policy in policies), default=most)
        fewest = min((policy.fewest_workers(most) for policy in policies), default=most)
        self.most, self.rebuild_s = most, 0.0
        self._pool, self._clock = pool, clock
        self._lanes = Lanes(first, limits, dispatch_branch)
        self._crew = Crew(pool, self._lanes, restarts, clock)
        self._stats = self._crew.stats
        self._staffing = Staffing(policies, fewest, self._crew)
        self._calls = UnfinishedCalls()  # of its methods from outside
        self._lock = threading.RLock()  # a Condition is taken in Python code, where Ctrl-C would leave it taken
        self._changed = threading.Condition(self._lock)
        self._awaited = False  # True while a thread waits for the workers
        self._interrupted = False  # True once that thread is to come back

    # --- figures: they ask nobody

    @property
    def num_workers(self) -> int:
        """The number of workers that host the shards just now."""
        return self._lanes.num_workers

    @property
    def limits(self) -> WorkerLimits:
        """The limits on how far workers run ahead just now, and on their deaths."""
        return self._lanes.limits

    @property
    def restarts(self) -> int:
        """The number of workers that have been replaced."""
        return self._crew.restarts

    @property
    def longest_backlog(self) -> int:
        """The most items that have waited in the dispatcher for one shard."""
        return self._crew.longest_backlog

    @property
    def usable(self) -> bool:
        """True if another epoch may begin: not after a call that an interrupt has cut short, nor while one goes on."""
        return not self._calls.broken

    @property
    def all_ready(self) -> bool:
        """True if every worker can begin."""
        return all(map(self._crew.is_ready, self._lanes.numbers()))

    def ready(self) -> set[int]:
        """The numbers of the workers that host shards and can begin."""
        return {worker.number for worker in self._crew if worker.ready and worker.number != DISPATCHER}

    def hosts(self, *, all_shards: bool = False) -> dict[int, int]:
        """shard -> the worker that hosts it, of the shards that go on, or of all in this epoch."""
        with self._lock:
            return self._lanes.hosts(all_shards=all_shards)

    def counters(self) -> dict[int, WorkerCounters]:
        """The counters so far of each worker that hosts shards, by number."""
        workers = [worker for worker in self._crew if worker.number != DISPATCHER]
        return {worker.number: counters for worker in workers if (counters := worker.counters()) is not None}

    def figures(self) -> ServiceFigures:
        """The figures of the workers in this epoch, or in the last one. Any thread."""
        if self._lanes.epoch is None:
            return self._stats.figures
        figures = self._stats.read(self._crew, self._lanes.ledgers(), self._lanes.worker_of)
        return replace(figures, restarts=self.restarts, method=self._pool.method)

    def measure_nodes(self, wanted: bool) -> None:
        """Time the nodes of passes that begin from now on, or do not."""
        self._pool.measure_nodes(wanted)

    # --- epochs

    def start(self) -> None:
        """Open the workers that are not open yet: all of them before any is waited for."""
        with self._calls, self._lock:
            self._crew.open_missing()

    def begin_epoch(
        self,
        start: EpochStart,
        cursors: Mapping[int, Cursor],
        entries: Mapping[int, LaneEntries] | None = None,
        *,
        snapshot_first: bool = False,
    ) -> None:
        """Let workers produce the lanes of ``cursors``; the shards of this process go to them in turn, in all branches.

        ``entries``: of each lane, where what items are made of is dealt. ``snapshot_first``: the first chunk of each is
        of one item, behind which a snapshot is taken.
        """
        with self._calls, self._lock:
            self._interrupted = False
            self._lanes.begin_epoch(start, cursors, entries or {}, snapshot_first=snapshot_first)
            self._crew.begin_epoch()
            self._staffing.begin_epoch(self)
            self._stats.begin_epoch(self._crew)
            self._crew.begin_all()

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay for the next epoch. Idempotent."""
        if not self.usable:
            return  # the next epoch has other ones
        with self._calls, self._lock:
            if self._lanes.epoch is None:
                return
            self._stats.figures = self.figures()
            self._lanes.end_epoch()
            self._lanes.failure = None  # not in begin_epoch: a failure between two epochs is the next one's
            self._crew.end_epoch()
            for worker in self._crew:
                worker.end(self._lanes.generation)

    def close(self) -> None:
        """End all workers. Idempotent."""
        try:
            with self._lock:
                self._stats.figures = self.figures()
                self._lanes.end_epoch()
        finally:
            self._pool.close()

    # --- who hosts what

    def resize(self, workers: int, window: int | None = None) -> None:
        """Let so many workers host the shards; ``window``: how far they may run ahead. The stream stays the same.

        Between two pulls. Those that are too many end once they have made what they are at. Shards that stay where they
        are go on; the others begin anew where they stand. Raises: ValueError for more than ``most``; OSError if one
        cannot be opened, and then all is as it was.
        """
        if not 1 <= workers <= self.most:
            raise ValueError(f"workers must be from 1 to {self.most}, got {workers}")
        with self._calls, self._lock:
            self._staffing.resize(workers, window)

    def assign(self, hosts: Mapping[int, int]) -> None:
        """Let worker ``hosts[shard]`` host each shard, in this epoch and the next ones. The stream stays the same.

        Between two pulls. Shards that are moved begin anew where they stand.
        """
        with self._calls, self._lock:
            self._staffing.assign(hosts)

    # --- what is made

    def deal(self, lane: int, entries: Sequence[bytes], *, over: bool = False) -> None:
        """Let ``lane`` make an item of each of ``entries``, after those before; ``over``: there are no more."""
        with self._calls, self._lock:
            ledger = self._lanes[lane]
            ledger.deal(list(entries), over)
            number = self._lanes.worker_of(ledger.shard)
            if number in self._crew and not self._crew.has_plan(number):
                self._crew[number].deal(Deal.of(self._lanes.generation, lane, entries, over))

    def outstanding(self, lane: int) -> int:
        """The number of entries dealt to ``lane`` whose items have not arrived."""
        return self._lanes[lane].outstanding

    def pull_any(
        self, lanes: Collection[int], timeout_s: float | None = None, waited_s: float = 0.0
    ) -> tuple[int, Chunk]:
        """(a lane, its next chunk), of whichever of ``lanes`` has one first; the one before it has been used up.

        Several threads may pull different lanes. Raises: WorkerDiedError in the chunk if an item keeps ending its
        worker; IteratorInvalidated after :meth:`interrupt`; RuntimeError, in torch's words, after ``timeout_s`` in
        which the workers that are waited for have not made an item again either, and of which ``waited_s`` are over;
        what a worker could not start with.
        """
        began = self._clock()
        with self._calls:
            found = self._next_arrival(lanes, timeout_s, waited_s)
            if isinstance(found, tuple):
                rebuilt = time.perf_counter()
                chunk = found[1].open(found[0].shard)
                self.rebuild_s += time.perf_counter() - rebuilt
                self._staffing.pulled(len(chunk.items), self._clock() - began)
                return found[0].lane, chunk
        try:
            raise found
        finally:
            del found  # its traceback has this frame, which would keep it, and the pass with it

    def interrupt(self) -> None:
        """Make a :meth:`pull_any` in another thread return at once. Thread-safe."""
        self._interrupted = True
        self._pool.wake()

    def _next_arrival(
        self, lanes: Collection[int], timeout_s: float | None, waited_s: float
    ) -> tuple[ShardLedger, Arrival] | BaseException:
        """(a lane, what has come for it), or what to raise instead."""
        deadline = None if timeout_s is None else self._clock() + timeout_s - waited_s
        remade: list[int] | None = None
        with self._lock:
            wanted = [self._lanes[lane] for lane in lanes if lane in self._lanes]
            for ledger in wanted:
                released, number = ledger.release(), self._lanes.worker_of(ledger.shard)
                if released and number in self._crew:
                    self._crew[number].grant(self._lanes.generation, ledger.lane, released)
            while True:
                if self._interrupted or len(wanted) < len(lanes):
                    return IteratorInvalidated(_CLOSED_ELSEWHERE)
                self._staffing.consult(self)  # before anything is taken: if it raises, nothing is lost
                for ledger in wanted:
                    if (arrival := ledger.take()) is not None:
                        return ledger, arrival
                if self._lanes.failure is not None:
                    return self._lanes.failure
                left_s = _LOOK_S
                if deadline is not None and timeout_s is not None:
                    awaited = {self._lanes.worker_of(ledger.shard) for ledger in wanted}
                    before, remade = remade, self._remade_by(awaited)
                    if before is not None and remade != before:  # on the way to where a state stood: it does not hang
                        deadline = self._clock() + timeout_s
                    left_s = min(_LOOK_S, deadline - self._clock())
                if left_s <= 0:
                    names = ", ".join(_named(worker) for worker in self._crew if worker.number in awaited)
                    return RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds, waiting for {names}")
                if self._awaited:
                    self._changed.wait(left_s)
                else:
                    self._wait(left_s)

    def _remade_by(self, awaited: Collection[int]) -> list[int]:
        """The number of items that each of these workers has made again."""
        found = [worker.counters() for worker in self._crew if worker.number in awaited]
        return [counters.remade for counters in found if counters is not None]

    def _wait(self, at_most_s: float) -> None:
        """Wait for anything to happen, without the lock, and handle it."""
        timeout_s = min([*self._crew.waits_s(), at_most_s])
        self._awaited = True
        try:
            self._lock.release()  # in the try: an interrupt may come as soon as it returns
            events = self._pool.wait(timeout_s)
        finally:
            self._lock.acquire()
            self._awaited = False
            self._changed.notify_all()
        self._crew.handle(events)
        self._crew.carry_out_plans()


def _named(worker: Worker) -> str:
    counters = worker.counters()
    return f"{worker.name} (pid {counters.pid})" if counters is not None and counters.pid else worker.name
