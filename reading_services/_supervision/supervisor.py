"""The supervisor: the only creator and killer of worker processes, and the one who waits for what they send.

Runs in the main process, without a thread of its own: in the threads that consume the stream. One of them at a time
waits for the processes, without the lock; the others wait for it to say that something has changed. All else happens
under the lock, except for :meth:`Supervisor.interrupt`. Owns the pool of processes, and the ledgers of their lanes.
The wait for the processes ends now and then, to look for signs of life. Recovery is restore: a worker that dies,
whatever its exit code, is started anew from the cursors after what has arrived. With a dispatcher any death sets back
all of them: what one worker had been dealt can only come again from the dispatcher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from multiprocessing.context import BaseContext

from reading_services._supervision.arrivals import Arrival
from reading_services._supervision.beginning import Beginning
from reading_services._supervision.ledger import Hand, ShardLedger
from reading_services._supervision.options import DispatchPart, WorkerLimits
from reading_services._supervision.post_mortem import PostMortem
from reading_services._supervision.process import WorkerProcess, check_room_for_files
from reading_services._supervision.recovery import SPENT, Plan, Recovery
from reading_services._supervision.whole_calls import WholeCalls
from reading_services._supervision.worker_pool import WorkerPool
from reading_services._transport.channel import Frame
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.messages import ChunkMessage, EndEpoch, Failed, Grant, Grown, Ready, Told
from reading_services._workers.dispatch_link import Listener
from reading_services._workers.dispatcher import run_dispatcher
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures.remote_error import dump_error, load_error
from torchpipe.stats.service import ServiceFigures

__all__ = ["Supervisor"]

_log = logging.getLogger("torchpipe")

_DISPATCHER = -1  # its number among the processes
_CLOSED_ELSEWHERE = "the loader was closed from another thread while the next item was awaited"
_LONG_BUFFER = 1000
_LOOK_S = 1.0  # a wait as long as this is begun anew: no wait notices a Ctrl-C that came in the instant before it
_Found = tuple[ShardLedger, Arrival] | BaseException  # what has come, or what to raise instead


class Supervisor:
    """Runs ``num_workers`` processes over many epochs. ``close`` ends them; a forgotten one ends with the object."""

    def __init__(
        self,
        *,
        num_workers: int,
        context: BaseContext,
        graph: GraphImage,
        node_names: Mapping[int, str],
        limits: WorkerLimits,
        dispatch: DispatchPart | None = None,
        earlier_restarts: int = 0,
    ) -> None:
        check_room_for_files("the supervisor of the workers")
        self.num_workers = num_workers
        self._calls = WholeCalls()  # of its methods from outside
        self.restarts, self.rebuild_s = earlier_restarts, 0.0
        # Items that have waited in the dispatcher for one shard, as it has told; may a shard drop more than others?
        self.longest_buffer, self.uneven = 0, True
        self._context, self._graph, self._node_names, self._dispatch = context, graph, node_names, dispatch
        self._listener = None if dispatch is None else Listener()
        # The processes that there should be: the dispatcher first, which workers connect to
        self._numbers = ([] if dispatch is None else [_DISPATCHER]) + list(range(num_workers))
        self._dispatch_doubtful = 0  # one of the dispatched items before this one may have killed the dispatcher
        self._fail_at: tuple[int, bytes] | None = None  # a dispatched item that is not to be tried again
        self._limits = limits
        self._recovery = Recovery(limits.max_deaths)
        self._lost: dict[int, PostMortem] = {}  # died when nothing was needed of them: missed in the next epoch
        self._plans: dict[int, Plan] = {}  # by number: of those that have died and have yet to begin
        self._generation = 0
        self._epoch: EpochStart | None = None
        self._ledgers: dict[int, ShardLedger] = {}  # by lane
        self._lock = threading.RLock()  # a Condition is taken in Python code, where Ctrl-C would leave it taken
        self._changed = threading.Condition(self._lock)
        self._awaited = self._interrupted = False  # does a thread wait for the processes, and is it to come back?
        self._failure: BaseException | None = None
        self._pool = WorkerPool(self._lock, *(() if self._listener is None else (self._listener,)))
        self._accounts = self._pool.accounts
        address = None if self._listener is None else self._listener.address
        self._begin = Beginning(limits, address, -1 if dispatch is None else dispatch.branch)

    def worker_pids(self) -> list[int]:
        """The ids of the processes that are alive: the dispatcher's, if there is one, then the workers'."""
        return [worker.pid for worker in self._pool if worker.is_alive()]

    @property
    def usable(self) -> bool:
        """May another epoch begin? Not after a call that was cut short by an interrupt, nor while one goes on."""
        return not self._calls.broken

    def start_workers(self) -> None:
        """Start the processes that do not run yet: all of them before any is waited for."""
        with self._calls, self._lock:
            self._start_missing()

    def _start_missing(self) -> None:
        for worker in [worker for worker in self._pool if not worker.is_alive()]:
            for frame in self._pool.last_words(worker):
                if isinstance(frame[0], Failed | Told):  # chunks are of an epoch that is over
                    self._handle(worker, frame)
            self._lose(worker, self._examine(worker))
        for number in [number for number in self._numbers if number not in self._pool]:
            if number not in self._lost or not self._limits.spent(self.restarts):
                self._start_worker(number)
                self.restarts += self._lost.pop(number, None) is not None
            elif any(not item.over for item in self._mine(number)):  # it is missed
                dead = self._lost.pop(number)
                self._give_up(dead, self._mine(number), dead.error(SPENT, self._limits.max_restarts), alone=False)

    def begin_epoch(self, start: EpochStart, positions: list[ShardPosition], hands: Mapping[int, Hand]) -> None:
        """Let the workers produce ``positions``; the shards of this process go to the workers in turn, in all branches.

        ``hands``: of each lane, where what items are made of is dealt."""
        with self._calls, self._lock:
            self._epoch, self._interrupted = start, False
            self._fail_at, self._dispatch_doubtful = None, 0
            self._recovery.begin_epoch()
            self._plans.clear()
            ledgers = [ShardLedger.begin(item, self._limits.window, hands.get(item.lane)) for item in positions]
            self._ledgers = {ledger.lane: ledger for ledger in ledgers}
            self._start_missing()
            self._accounts.begin_epoch(self._pool)
            self._begin_all()

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay for the next epoch. Idempotent."""
        if not self.usable:
            return  # the next epoch has other ones
        with self._calls, self._lock:
            if self._epoch is None:
                return
            self._accounts.figures = self.figures()
            self._epoch = None
            self._failure = None  # not in begin_epoch: a failure between two epochs is the next one's
            self._ledgers = {}
            self._plans.clear()
            for number in self._numbers:
                self._pool.send(number, EndEpoch(generation=self._generation))

    def pull_any(self, lanes: Collection[int], timeout_s: float | None = None) -> tuple[int, Chunk]:
        """(a lane, its next chunk), of whichever of ``lanes`` has one first; the one before it has been used up.

        Several threads may pull different lanes. Raises: WorkerDiedError in the chunk if a position keeps killing its
        worker; IteratorInvalidated after :meth:`interrupt`; RuntimeError, in torch's words, after ``timeout_s``; what
        a worker could not start with.
        """
        with self._calls:
            found = self._next_arrival(lanes, timeout_s)
            if isinstance(found, tuple):
                began = time.perf_counter()
                chunk = found[1].open(found[0].shard)
                self.rebuild_s += time.perf_counter() - began
                return found[0].lane, chunk
        try:
            raise found
        finally:
            del found  # its traceback has this frame, which would keep it, and the pass with it

    def _next_arrival(self, lanes: Collection[int], timeout_s: float | None) -> _Found:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            wanted = [self._ledgers[lane] for lane in lanes if lane in self._ledgers]
            for ledger in wanted:
                released = ledger.release()
                if released:
                    number = self._worker_of(ledger.shard)
                    self._pool.send(number, Grant(generation=self._generation, lane=ledger.lane, chunks=released))
            while True:
                if self._interrupted or len(wanted) < len(lanes):
                    return IteratorInvalidated(_CLOSED_ELSEWHERE)
                for ledger in wanted:
                    if (arrival := ledger.take()) is not None:
                        return ledger, arrival
                if self._failure is not None:
                    return self._failure
                left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                if left_s <= 0:
                    awaited = {self._worker_of(ledger.shard) for ledger in wanted}
                    names = ", ".join(f"{item.name} (pid {item.pid})" for item in self._pool if item.worker in awaited)
                    return RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds, waiting for {names}")
                if self._awaited:
                    self._changed.wait(left_s)
                else:
                    self._wait(left_s)

    def interrupt(self) -> None:
        """Make a :meth:`pull_any` in another thread return at once. Thread-safe."""
        self._interrupted = True
        self._pool.wake()

    def measure_nodes(self, wanted: bool) -> None:
        """Time the nodes of passes that begin from now on, or do not."""
        self._pool.measure_nodes(wanted)

    def figures(self) -> ServiceFigures:
        """What the processes have done in this epoch, or in the last one. Asks nobody. Any thread."""
        if self._epoch is None:
            return self._accounts.figures
        told = self._accounts.read(list(self._pool), list(self._ledgers.values()), self._worker_of)
        return replace(told, method=self._context.get_start_method(), restarts=self.restarts)

    def close(self) -> None:
        """End all processes: about 3 s at most, and 0.25 s for each that the program itself waits for. Idempotent."""
        try:
            with self._lock:
                self._accounts.figures = self.figures()
                self._epoch = None
                self._ledgers = {}
        finally:
            self._pool.close()

    def _wait(self, at_most_s: float) -> None:
        """Wait for anything to happen, without the lock, and handle it."""
        now = time.monotonic()
        times = (plan.begin_at if number in self._pool else plan.start_at for number, plan in self._plans.items())
        waits = [at - now for at in times if at > now]  # what is late waits for a process to be ready
        silent_s = self._limits.silent_s
        waits += [] if silent_s is None else [min(silent_s / 4, 0.5)]
        self._awaited = True
        try:
            self._lock.release()  # in the try: an interrupt may come as soon as it returns
            events = self._pool.select(min([*waits, at_most_s]))
        finally:
            self._lock.acquire()
            self._awaited = False
            self._changed.notify_all()
        trouble: list[Exception] = []
        for worker, frames, gone in self._pool.happened(events):
            for frame in frames:
                try:
                    self._handle(worker, frame)
                except Exception as error:  # raised after the rest: what came besides must not be lost
                    trouble.append(error)
            if gone:
                self._recover(worker)
        for worker in self._pool.kill_silent(silent_s):
            self._recover(worker)
        self._carry_out_plans()
        if trouble:
            raise trouble[0]

    def _handle(self, worker: WorkerProcess, frame: Frame) -> None:
        message, payload = frame
        match message:
            case ChunkMessage():
                arrival = Arrival.of(message, payload, worker.receiver)  # gives its slot back if nobody wants it
                ledger = self._ledgers.get(message.lane)
                if message.generation == self._generation and ledger is not None:
                    ledger.arrive(arrival)
            case Ready():
                worker.signs.say_ready()
            case Told():
                self._accounts.hear(worker.name, message)
            case Grown(items=items):
                self.longest_buffer = max(self.longest_buffer, items)
                self._accounts.events.tell("growth", worker.name, f"{items} dispatched items wait for one shard")
                level = logging.WARNING if items >= _LONG_BUFFER and self.uneven else logging.DEBUG
                _log.log(level, "%d dispatched items wait for a shard that drops less than others", items)
            case Failed(error=data):
                worker.failed = True
                self._failure = load_error(data)
            case _:
                raise TypeError(f"the main process cannot handle {message!r}")

    def _recover(self, worker: WorkerProcess) -> None:
        """A process has died: start it anew from the cursors, or record what killed it too often."""
        number, dead = worker.worker, self._examine(worker)
        mine = self._mine(number)
        guard = worker.missing_guard()
        if guard is not None:
            worker.failed, self._failure = True, guard
        if self._failure is not None or all(item.over for item in mine):
            self._lose(worker, dead)
            return
        # A worker that dies before it is ready has been dealt nothing in this generation
        before = self._plans.pop(number, None)
        all_anew = self._dispatch is not None and (worker.signs.ready if before is None else before.all_anew)
        self._pool.bury(number)
        now, spent = time.monotonic(), self._limits.spent(self.restarts)
        decision = self._recovery.record(dead.death(tuple(item.count for item in mine)), now, spent=spent)
        self._doubt(dead)
        if decision.give_up:
            self._give_up(dead, mine, dead.error(decision, self._limits.max_restarts), alone=not decision.exhausted)
        else:
            _log.warning("%s: %s", dead, dead.consequence(decision, self._limits.max_deaths, self.restarts + 1))
        if not all(item.over for item in mine):
            self.restarts += 1
            self._accounts.restarted(number, worker.name, str(dead))
            start_at = now + decision.start_s
            self._plans[number] = Plan(start_at, start_at + decision.rest_s, all_anew)
            self._carry_out_plans()

    def _lose(self, worker: WorkerProcess, dead: PostMortem) -> None:
        """Nothing more is needed of it in this epoch."""
        self._recovery.ended(worker.worker, time.monotonic())
        self._plans.pop(worker.worker, None)
        if not worker.failed:  # else it has said why, and its error is raised
            _log.warning("%s: nothing is needed of it before the next epoch", dead)
            self._lost[worker.worker] = dead
            self._accounts.events.tell("lost", worker.name, str(dead))
        self._pool.bury(worker.worker)

    def _carry_out_plans(self) -> None:
        """Start anew the processes whose time has come, and let begin those that have rested."""
        now = time.monotonic()
        for number, plan in list(self._plans.items()):
            if number not in self._pool and plan.start_at <= now:
                self._start_worker(number)
            # Once it is ready: others get on meanwhile, and who dies while starting sets nobody back
            if plan.begin_at <= now and self._pool.is_ready(number):
                del self._plans[number]
                if plan.all_anew:
                    self._begin_all()
                elif number == _DISPATCHER:
                    self._begin_dispatcher()
                else:
                    self._begin_worker(number)

    def _examine(self, worker: WorkerProcess) -> PostMortem:
        num_shards = None if self._epoch is None else self._epoch.num_shards
        dispatcher = worker.worker == _DISPATCHER
        return worker.examine(dispatcher=dispatcher, num_shards=num_shards, batches=self._limits.batches)

    def _doubt(self, dead: PostMortem) -> None:
        """Let the items that may have been the culprit be made one by one from now on."""
        if dead.begun_s is None:
            return
        if dead.dispatcher and dead.lane >= 0:
            self._dispatch_doubtful = max(self._dispatch_doubtful, dead.items.stop)
        elif dead.lane in self._ledgers:
            ledger = self._ledgers[dead.lane]
            ledger.doubtful = max(ledger.doubtful, dead.items.stop)

    def _worker_of(self, shard: int) -> int:
        return (0 if self._epoch is None else self._epoch.shards.index(shard)) % self.num_workers

    def _mine(self, number: int) -> list[ShardLedger]:
        """The lanes that need the process."""
        ledgers = self._ledgers.values()
        return [item for item in ledgers if number == _DISPATCHER or self._worker_of(item.shard) == number]

    def _give_up(self, dead: PostMortem, mine: list[ShardLedger], error: WorkerDiedError, *, alone: bool) -> None:
        """The error takes the place of the item; without a culprit, of the next one of every shard of that process.

        ``alone``: that item is all that cannot be had; otherwise, the process itself.
        """
        if alone and dead.dispatcher and dead.begun_s is not None:
            self._fail_at = (dead.items[0], dump_error(error))
            return
        for ledger in mine:
            if not ledger.over and (dead.dispatcher or not alone or dead.lane in (ledger.lane, -1)):
                ledger.arrive(Arrival(error=error))

    def _begin_all(self) -> None:
        """Begin a new generation: the dispatcher at the newest mark that serves all shards, and every worker."""
        self._generation += 1
        if self._dispatch is not None and _DISPATCHER not in self._plans:
            self._begin_dispatcher()
        for worker in range(self.num_workers):
            if worker in self._pool and worker not in self._plans:  # which begin when they have rested
                self._begin_worker(worker)

    def _begin_dispatcher(self) -> None:
        assert self._epoch is not None
        message = self._begin.dispatcher(
            self._epoch,
            self._generation,
            list(self._ledgers.values()),
            doubtful=self._dispatch_doubtful,
            careful=self._recovery.careful(_DISPATCHER),
            fail_at=self._fail_at,
        )
        self._pool.send(_DISPATCHER, message)

    def _start_worker(self, number: int) -> None:
        self._recovery.started(number, time.monotonic())
        context, listener, part = self._context, self._listener, self._dispatch
        if number != _DISPATCHER:
            worker = WorkerProcess(number, context, self._graph, self._node_names, name=f"worker {number}")
            self._pool.start(worker, *(() if listener is None else (listener.socket.fileno(),)))
            return
        assert part is not None
        assert listener is not None
        graph, names, extra = part.graph, part.node_names, (listener.socket,)
        worker = WorkerProcess(number, context, graph, names, name="dispatcher", target=run_dispatcher, extra=extra)
        self._pool.start(worker)

    def _begin_worker(self, number: int) -> None:
        assert self._epoch is not None
        mine = [item for item in self._mine(number) if not item.over]
        careful = self._recovery.careful(number)
        for message in self._begin.worker(self._epoch, self._generation, mine, careful=careful):
            self._pool.send(number, message)
