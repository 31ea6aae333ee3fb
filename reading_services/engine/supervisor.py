"""The supervisor: decides what each worker does, keeps what has arrived, and replaces workers that end.

Runs in the main process, without a thread of its own: in the threads that consume the stream. One of them at a time
waits for the workers, without the lock; the others wait for it to say that something has changed. All else happens
under the lock, except for :meth:`Supervisor.interrupt`. The wait for the workers ends now and then, for plans that are
due.

Recovery is restore: a worker that ends is opened anew and begins at the cursors after what has arrived. With a
dispatcher, any death sets back all: what one worker had been dealt can only come again from the dispatcher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from reading_services.engine.deaths import Death
from reading_services.engine.ledger import DealtEntries, ShardLedger
from reading_services.engine.messages import Backlog, Deal, Report, Skipped, StartDispatch, StartEpoch
from reading_services.engine.options import WorkerLimits
from reading_services.engine.policy import Change, Policy
from reading_services.engine.recovery import SPENT, Plan, Recovery
from reading_services.engine.whole_calls import WholeCalls
from reading_services.engine.worker_stats import WorkerStats
from reading_services.engine.workers import (
    DISPATCHER,
    Arrival,
    ChunkArrived,
    End,
    Event,
    Failed,
    Gone,
    Late,
    Leaving,
    NoRoomHere,
    Ready,
    Reported,
    Worker,
    WorkerCounters,
    WorkerPool,
)
from torchpipe.errors import IteratorInvalidated, WorkerDiedError
from torchpipe.execution.dispatch import dispatch_start
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures.remote_error import dump_error
from torchpipe.stats.service import ServiceFigures

__all__ = ["Supervisor"]

_log = logging.getLogger("torchpipe")

_CLOSED_ELSEWHERE = "the loader was closed from another thread while the next item was awaited"
_LONG_BACKLOG = 1000
_LOOK_S = 1.0  # a wait as long as this is begun anew: no wait notices a Ctrl-C that came in the instant before it


class Supervisor:
    """Lets at most ``most`` workers host shards over many epochs; with ``dispatch_branch``, one more hosts what is
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
        self.num_workers = min((policy.first_workers(most) for policy in policies), default=most)
        self.most, self.limits, self.restarts = most, limits, restarts
        self._fewest = min((policy.fewest_workers(most) for policy in policies), default=most)
        self._policies = tuple(policies)
        self.rebuild_s = 0.0
        self.longest_backlog = 0  # items that have waited in the dispatcher for one shard
        self.stats = WorkerStats()
        self._pool, self._dispatch_branch, self._clock = pool, dispatch_branch, clock
        self._calls = WholeCalls()  # of its methods from outside
        self._open: dict[int, Worker] = {}
        self._successors: dict[int, Worker] = {}  # of workers that are leaving: each takes over when it is ready
        self._assigned: dict[int, int] = {}  # shard -> the worker that hosts it, where that was decided
        self._dispatch_suspect = 0  # one of the dispatched items before this one may have ended the dispatcher
        self._fail_at: tuple[int, bytes] | None = None  # a dispatched item that is not to be tried again
        self._recovery = Recovery(limits.max_deaths)
        self._lost: dict[int, Death] = {}  # ended when nothing was needed of them: missed in the next epoch
        self._late: set[int] = set()  # have not started in time, as it was told since it was last decided
        self._plans: dict[int, Plan] = {}  # by number: of those that have ended and have yet to begin
        self._generation = 0
        self._epoch: EpochStart | None = None
        self._ledgers: dict[int, ShardLedger] = {}  # by lane
        self._lock = threading.RLock()  # a Condition is taken in Python code, where Ctrl-C would leave it taken
        self._changed = threading.Condition(self._lock)
        self._awaited = self._interrupted = (
            False  # True while a thread waits for the workers, and once it has been told to come back
        )
        self._failed: set[int] = set()  # have said why they cannot go on, and end by themselves
        self._failure: BaseException | None = None

    @property
    def usable(self) -> bool:
        """True if another epoch may begin: not after a call that an interrupt has cut short, nor while one goes on."""
        return not self._calls.broken

    @property
    def all_ready(self) -> bool:
        """True if every worker can begin."""
        return all(number in self._open and self._open[number].ready for number in self._numbers())

    def start(self) -> None:
        """Open the workers that are not open yet: all of them before any is waited for."""
        with self._calls, self._lock:
            self._open_missing()

    def begin_epoch(
        self, start: EpochStart, positions: Sequence[ShardPosition], dealt: Mapping[int, DealtEntries] | None = None
    ) -> None:
        """Let workers produce ``positions``; the shards of this process go to them in turn, in all branches.

        ``dealt``: of each lane, where what items are made of is dealt."""
        with self._calls, self._lock:
            self._generation += 1  # what is still on its way belongs to no lane of this epoch
            self._epoch, self._interrupted = start, False
            self._fail_at, self._dispatch_suspect = None, 0
            self._recovery.begin_epoch()
            self._plans.clear()
            window, dealt = self.limits.window, dealt or {}
            since = self._generation
            ledgers = [ShardLedger.begin(item, window, dealt.get(item.lane), since=since) for item in positions]
            self._ledgers = {ledger.lane: ledger for ledger in ledgers}
            self._open_missing()
            for policy in self._policies:
                if change := policy.begin_epoch(self, self._clock()):
                    self._grant(change, begun=False)
            self.stats.begin_epoch(self._open.values())
            self._begin_all()

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay for the next epoch. Idempotent."""
        if not self.usable:
            return  # the next epoch has other ones
        with self._calls, self._lock:
            if self._epoch is None:
                return
            self.stats.figures = self.figures()
            self._epoch = None
            self._failure = None  # not in begin_epoch: a failure between two epochs is the next one's
            self._ledgers = {}
            self._plans.clear()
            for worker in self._open.values():
                worker.end(self._generation)

    def pull_any(self, lanes: Collection[int], timeout_s: float | None = None) -> tuple[int, Chunk]:
        """(a lane, its next chunk), of whichever of ``lanes`` has one first; the one before it has been used up.

        Several threads may pull different lanes. Raises: WorkerDiedError in the chunk if an item keeps ending its
        worker; IteratorInvalidated after :meth:`interrupt`; RuntimeError, in torch's words, after ``timeout_s``; what
        a worker could not start with.
        """
        began = self._clock()
        with self._calls:
            found = self._next_arrival(lanes, timeout_s)
            if isinstance(found, tuple):
                rebuilt = time.perf_counter()
                chunk = found[1].open(found[0].shard)
                self.rebuild_s += time.perf_counter() - rebuilt
                for policy in self._policies:
                    policy.pulled(len(chunk.items), self._clock() - began)
                return found[0].lane, chunk
        try:
            raise found
        finally:
            del found  # its traceback has this frame, which would keep it, and the pass with it

    def deal(self, lane: int, entries: Sequence[bytes], *, over: bool = False) -> None:
        """Let ``lane`` make an item of each of ``entries``, after those before; ``over``: there are no more."""
        with self._calls, self._lock:
            ledger = self._ledgers[lane]
            ledger.deal(list(entries), over)
            number = self._worker_of(ledger.shard)
            if number in self._open and number not in self._plans:  # else it gets all of them when it begins
                self._open[number].deal(Deal.of(self._generation, lane, entries, over))

    def outstanding(self, lane: int) -> int:
        """How many entries have been dealt to ``lane`` whose items have not arrived."""
        return self._ledgers[lane].outstanding

    def resize(self, workers: int, window: int | None = None) -> None:
        """Let so many workers host the shards; ``window``: how far they may run ahead. The stream stays the same.

        Between two pulls. Those that are too many end once they have made what they are at. Shards that stay where they
        are go on; the others begin anew where they stand. Raises: ValueError for more than ``most``; OSError if one
        cannot be opened, and then all is as it was.
        """
        if not 1 <= workers <= self.most:
            raise ValueError(f"there can be 1 to {self.most} workers, not {workers}")
        with self._calls, self._lock:
            self._carry_out(Change(workers=workers, window=window, why="as told"), self._opened(workers))
            self._fewest = workers

    def assign(self, hosts: Mapping[int, int]) -> None:
        """Let worker ``hosts[shard]`` host each shard, in this epoch and the next ones. The stream stays the same.

        Between two pulls. Shards that are moved begin anew where they stand.
        """
        with self._calls, self._lock:
            self._carry_out(Change(hosts=hosts, why="as told"))

    def hosts(self, *, all_shards: bool = False) -> dict[int, int]:
        """shard -> the worker that hosts it, of the shards that go on, or of all in this epoch."""
        with self._lock:
            shards = {ledger.shard for ledger in self._ledgers.values() if all_shards or not ledger.over}
            return {shard: self._worker_of(shard) for shard in sorted(shards)}

    def ready(self) -> set[int]:
        """The numbers of the workers that host shards and can begin."""
        return {worker.number for worker in self._in_order() if worker.ready and worker.number != DISPATCHER}

    def interrupt(self) -> None:
        """Make a :meth:`pull_any` in another thread return at once. Thread-safe."""
        self._interrupted = True
        self._pool.wake()

    def figures(self) -> ServiceFigures:
        """What the workers have done in this epoch, or in the last one. Asks nobody. Any thread."""
        if self._epoch is None:
            return self.stats.figures
        told = self.stats.read(self._in_order(), list(self._ledgers.values()), self._worker_of)
        return replace(told, restarts=self.restarts, method=self._pool.method)

    def measure_nodes(self, wanted: bool) -> None:
        """Time the nodes of passes that begin from now on, or do not."""
        self._pool.measure_nodes(wanted)

    def counters(self) -> dict[int, WorkerCounters]:
        """What each worker that hosts shards has done so far, by number."""
        workers = [worker for worker in self._in_order() if worker.number != DISPATCHER]
        return {worker.number: counters for worker in workers if (counters := worker.counters()) is not None}

    def close(self) -> None:
        """End all workers. Idempotent."""
        try:
            with self._lock:
                self.stats.figures = self.figures()
                self._epoch = None
                self._ledgers = {}
        finally:
            self._pool.close()

    # --- what has arrived

    def _next_arrival(
        self, lanes: Collection[int], timeout_s: float | None
    ) -> tuple[ShardLedger, Arrival] | BaseException:
        """(a lane, what has come for it), or what to raise instead."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        with self._lock:
            wanted = [self._ledgers[lane] for lane in lanes if lane in self._ledgers]
            for ledger in wanted:
                released, number = ledger.release(), self._worker_of(ledger.shard)
                if released and number in self._open:
                    self._open[number].grant(self._generation, ledger.lane, released)
            while True:
                if self._interrupted or len(wanted) < len(lanes):
                    return IteratorInvalidated(_CLOSED_ELSEWHERE)
                self._consult()  # before anything is taken: if it raises, nothing is lost
                for ledger in wanted:
                    if (arrival := ledger.take()) is not None:
                        return ledger, arrival
                if self._failure is not None:
                    return self._failure
                left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - self._clock())
                if left_s <= 0:
                    awaited = {self._worker_of(ledger.shard) for ledger in wanted}
                    names = ", ".join(_named(worker) for number, worker in self._open.items() if number in awaited)
                    return RuntimeError(f"DataLoader timed out after {timeout_s:g} seconds, waiting for {names}")
                if self._awaited:
                    self._changed.wait(left_s)
                else:
                    self._wait(left_s)

    def _wait(self, at_most_s: float) -> None:
        """Wait for anything to happen, without the lock, and handle it."""
        now = self._clock()
        # Of one that is late, the worker is being started: an event will say when it is ready
        waits = [plan.start_at - now for plan in self._plans.values() if plan.start_at > now]
        self._awaited = True
        try:
            self._lock.release()  # in the try: an interrupt may come as soon as it returns
            events = self._pool.wait(min([*waits, at_most_s]))
        finally:
            self._lock.acquire()
            self._awaited = False
            self._changed.notify_all()
        self._handle(events)
        self._carry_out_plans()

    def _handle(self, events: Iterable[Event], *, recover: bool = True) -> None:
        """Raises: the first of what handling them has raised, when all is handled: nothing must be lost."""
        trouble: list[Exception] = []
        for event in events:
            if self._open.get(event.worker.number) is not event.worker:
                self._handle_successor(event)  # or it was let go of
                continue
            try:
                self._handle_one(event, recover)
            except Exception as error:
                trouble.append(error)
        if trouble:
            raise trouble[0]

    def _handle_one(self, event: Event, recover: bool) -> None:
        match event:
            case ChunkArrived(worker=worker, generation=generation, lane=lane, arrival=arrival):
                if (ledger := self._wanted(lane, generation)) is not None:
                    told, ledger.reports = ledger.reports, []
                    for report in told:
                        self.stats.record(worker.name, report)
                    ledger.arrive(arrival)
            case Reported(worker=worker, report=report):
                self._hear(worker, report)
            case Failed(worker=worker, error=error):
                self._failed.add(worker.number)
                self._failure = error
            case Gone(worker=worker, end=end):
                if recover:
                    self._recover(worker, end)
                else:
                    self._lose(worker, self._death(worker, end))
            case Leaving(worker=worker):
                self._open_successor(worker)
            case NoRoomHere(worker=worker):
                if not worker.ready:  # else it has found room meanwhile
                    self._open_anew(worker)
            case Late(worker=worker):
                self._late.add(worker.number)
            case Ready():
                pass  # the worker knows; plans are carried out with each wait

    def _wanted(self, lane: int, generation: int) -> ShardLedger | None:
        """The lane that something of this generation is of, unless it has begun anew since."""
        ledger = self._ledgers.get(lane)
        return ledger if ledger is not None and generation >= ledger.since else None

    def _hear(self, worker: Worker, report: Report) -> None:
        if isinstance(report, Skipped) and report.lane >= 0:
            if (ledger := self._wanted(report.lane, report.generation)) is not None:
                ledger.reports.append(report)  # until its chunk has come: else another worker makes that again
            return
        if isinstance(report, Backlog):
            self._note_backlog(report.items)
        self.stats.record(worker.name, report)

    def _note_backlog(self, items: int) -> None:
        self.longest_backlog = max(self.longest_backlog, items)
        level = logging.WARNING if items >= _LONG_BACKLOG else logging.DEBUG
        _log.log(level, "%d dispatched items wait for a shard that drops less than others", items)

    # --- who hosts what, and what if a worker is late

    def _consult(self) -> None:
        """Do what the policies say. A worker that is late and hosts what goes on all the same is an error; but one that
        a policy alone has wished for is let go of.
        """
        late = {number for number in self._late if number in self._open and not self._open[number].ready}
        self._late.clear()
        last = self.num_workers
        while last > self._fewest and last - 1 in late:
            last -= 1
        if last < self.num_workers:
            self._withdraw(last, self._open[last])
        for policy in self._policies:
            if change := policy.before_pull(self, self._clock(), late):
                self._grant(change)
        late = {number for number in late if number in self._open and any(not item.over for item in self._mine(number))}
        surplus = min(len(late - {DISPATCHER}), self.num_workers - self._fewest)
        if surplus > 0 and DISPATCHER not in late:  # the last ones leave their room to those that have none
            number = min(late)
            worker = self._open[number]
            for number in late:
                self._plans.pop(number, None)
                self._let_go(number)
            self._withdraw(self.num_workers - surplus, worker)
            return
        for number in late:
            if self._failure is None:
                self._failed.add(number)
                self._failure = self._pool.late_error(self._open[number])
                self._plans.pop(number, None)
                self._let_go(number)

    def _grant(self, change: Change, *, begun: bool = True) -> None:
        """Do what a policy says, or leave all as it is."""
        try:
            opened = self._opened(change.workers)
        except OSError as error:
            self._refuse(f"going on with {self.num_workers} workers: another one cannot be started ({error})")
            return
        _log.info("%s", change.why)
        self.stats.events.tell("tuned", "main", change.why)
        self._carry_out(change, opened, begun=begun)

    def _withdraw(self, workers: int, late: Worker) -> None:
        """Go on with so many: no more than that have found room."""
        why = f"going on with {workers} workers: {self._pool.late_error(late)}"
        self._carry_out(Change(workers=workers, why=why))
        self._refuse(why)

    def _refuse(self, why: str) -> None:
        _log.warning("%s", why)
        self.stats.events.tell("tuned", "main", why)
        for policy in self._policies:
            policy.refused(self.num_workers, self._clock())

    def _opened(self, workers: int | None) -> dict[int, Worker]:
        """What is missing of so many, opened: all of them or none. Raises: OSError."""
        opened: dict[int, Worker] = {}
        try:
            for number in range(self.num_workers, workers or 0):
                opened[number] = self._pool.open(number)
        except BaseException:
            for worker in opened.values():
                self._pool.drop(worker)
            raise
        return opened

    def _carry_out(self, change: Change, opened: Mapping[int, Worker] | None = None, *, begun: bool = True) -> None:
        """``opened``: the workers that come with it. ``begun``: have the shards of the epoch begun, so that those that
        move begin anew?
        """
        before = self._hosts()
        self._open.update(opened or {})
        if change.window is not None:
            self.limits = replace(self.limits, window=change.window)
            for ledger in self._ledgers.values():
                ledger.window = change.window
        if change.workers is not None:
            for number in [number for number in self._open if number >= change.workers]:
                self._let_go(number)
                self._plans.pop(number, None)
            for number in [number for number in self._successors if number >= change.workers]:
                self._pool.drop(self._successors.pop(number))
            for number in [number for number in self._lost if number >= change.workers]:
                del self._lost[number]  # nobody misses it
            self.num_workers = change.workers
            self._assigned.clear()
        if change.hosts is not None:  # also of shards that have ended: the next epoch begins where this one stands
            self._assigned = self.hosts(all_shards=True) | dict(change.hosts)
        if begun and self._epoch is not None:
            self._open_missing()
            self._move(before)

    # --- workers that will end, or have ended

    def _open_successor(self, worker: Worker) -> None:
        number = worker.number
        if number not in self._successors:
            _log.warning("%s will end soon: starting another one to take over", worker.name)
            self.stats.events.tell("restart", worker.name, f"{worker.name} will end soon: another one takes over")
            self._successors[number] = self._pool.open(number)

    def _handle_successor(self, event: Event) -> None:
        """One that ends before it has taken over is opened again when its predecessor has ended."""
        number = event.worker.number
        if self._successors.get(number) is event.worker and isinstance(event, Failed | Gone):
            self._pool.drop(self._successors.pop(number))

    def _take_over(self) -> None:
        """Let successors that are ready take the workers of their predecessors, which still live."""
        for number, worker in list(self._successors.items()):
            if worker.ready and number in self._open and number not in self._plans:
                dispatched = self._dispatch_branch >= 0
                self._let_go(number)
                self._open[number] = self._successors.pop(number)
                if self._epoch is not None:
                    self._plans[number] = Plan(self._clock(), all_anew=dispatched)

    def _open_anew(self, worker: Worker) -> None:
        """It has been told what to begin, and has begun nothing."""
        number, plan = worker.number, self._plans.pop(worker.number, None)
        _log.info("%s has found no room where it was put: opening it anew", worker.name)
        self._let_go(number)
        self._open[number] = self._new_place(number)
        if self._epoch is not None:
            self._plans[number] = plan or Plan(self._clock(), self._dispatch_branch >= 0 and number == DISPATCHER)

    def _new_place(self, number: int) -> Worker:
        return self._successors.pop(number, None) or self._pool.open(number)

    def _death(self, worker: Worker, end: End) -> Death:
        return Death(
            name=worker.name,
            end=end,
            dispatcher=worker.number == DISPATCHER,
            num_shards=None if self._epoch is None else self._epoch.num_shards,
            torch_wording=self.limits.torch_wording,
        )

    def _recover(self, worker: Worker, end: End) -> None:
        """A worker has ended: plan to open it anew, or record what has ended it too often."""
        number, death, mine = worker.number, self._death(worker, end), self._mine(worker.number)
        going_on = any(not item.over for item in mine)
        # One that hosts nothing just now may be given shards again
        in_reserve = not mine and bool(self._assigned) and any(not item.over for item in self._ledgers.values())
        if self._failure is not None or not (going_on or in_reserve):
            self._lose(worker, death)
            return
        # A worker that ends before it is ready has been dealt nothing in this generation; a dispatcher is waited for
        before = self._plans.pop(number, None)
        dealt = worker.ready or number == DISPATCHER if before is None else before.all_anew
        all_anew = self._dispatch_branch >= 0 and dealt
        self._let_go(number)
        if self.limits.spent(self.restarts):
            decision = SPENT
        else:
            progress = tuple(item.count for item in mine)
            decision = self._recovery.record(number, end, progress, dispatcher=death.dispatcher)
        self._suspect(death)
        if decision.give_up:
            self._give_up(death, mine, death.error(decision, self.limits.max_restarts), alone=not decision.exhausted)
        else:
            _log.warning("%s: %s", death, death.consequence(decision, self.limits.max_deaths, self.restarts + 1))
        if any(not item.over for item in mine) or not decision.give_up:
            self.restarts += 1
            self.stats.restarted(number, worker.name, str(death))
            self._plans[number] = Plan(self._clock() + decision.delay_s, all_anew)
            self._carry_out_plans()

    def _lose(self, worker: Worker, death: Death) -> None:
        """Nothing more is needed of it in this epoch."""
        self._plans.pop(worker.number, None)
        if worker.number not in self._failed:  # else it has said why, and its error is raised
            _log.warning("%s: nothing is needed of it before the next epoch", death)
            self._lost[worker.number] = death
            self.stats.events.tell("lost", worker.name, str(death))
        self._let_go(worker.number)

    def _let_go(self, number: int) -> None:
        worker = self._open.pop(number)
        self.stats.ended(worker)
        self._failed.discard(number)
        self._pool.drop(worker)

    def _suspect(self, death: Death) -> None:
        """Let the items that may be to blame be made one by one from now on."""
        end = death.end
        if not end.begun:
            return
        if death.dispatcher:
            self._dispatch_suspect = max(self._dispatch_suspect, end.items.stop)
        elif end.lane in self._ledgers:
            ledger = self._ledgers[end.lane]
            ledger.isolate_before = max(ledger.isolate_before, end.items.stop)

    def _give_up(self, death: Death, mine: list[ShardLedger], error: WorkerDiedError, *, alone: bool) -> None:
        """The error takes the place of the item; without a culprit, of the next one of every shard of that worker.

        ``alone``: that item is all that cannot be had; otherwise, the worker itself.
        """
        if alone and death.dispatcher and death.end.begun:
            self._fail_at = (death.end.items[0], dump_error(error))
            return
        for ledger in mine:
            if not ledger.over and (death.dispatcher or not alone or death.end.lane in (ledger.lane, -1)):
                ledger.arrive(Arrival(error=error))

    # --- workers that begin

    def _numbers(self) -> list[int]:
        """The workers that there should be: the dispatcher first."""
        return ([] if self._dispatch_branch < 0 else [DISPATCHER]) + list(range(self.num_workers))

    def _open_missing(self) -> None:
        for worker in list(self._open.values()):
            self._handle(self._pool.pending(worker), recover=False)
        for number in [number for number in self._numbers() if number not in self._open]:
            if number not in self._lost or not self.limits.spent(self.restarts):
                self._open[number] = self._new_place(number)
                self.restarts += self._lost.pop(number, None) is not None
            elif any(not item.over for item in self._mine(number)):  # it is missed
                death = self._lost.pop(number)
                self._give_up(death, self._mine(number), death.error(SPENT, self.limits.max_restarts), alone=False)

    def _carry_out_plans(self) -> None:
        """Open anew the workers whose time has come, and let begin those that are ready."""
        self._take_over()
        now = self._clock()
        for number, plan in list(self._plans.items()):
            if number not in self._open and plan.start_at <= now:
                self._open[number] = self._new_place(number)
            # Once it is ready: others get on meanwhile, and one that ends while it starts sets nobody back
            if number in self._open and self._open[number].ready:
                del self._plans[number]
                if plan.all_anew:
                    self._begin_all()
                else:
                    self._begin(number)

    def _begin_all(self) -> None:
        """Begin a new generation: the dispatcher at the newest mark that serves all shards, and every worker."""
        self._move({})

    def _hosts(self) -> dict[int, Worker]:
        """The workers at work, by the lanes that they host."""
        begun = {number: worker for number, worker in self._open.items() if number not in self._plans}
        hosts = {item.lane: begun.get(self._worker_of(item.shard)) for item in self._ledgers.values()}
        return {lane: worker for lane, worker in hosts.items() if worker is not None}

    def _move(self, before: Mapping[int, Worker]) -> None:
        """Begin a new generation, in which lanes go on that have the worker they had ``before``; but where items are
        dispatched, since these come again from the dispatcher alone.
        """
        self._generation += 1
        after = self._hosts() if self._dispatch_branch < 0 else {}
        kept = {lane for lane, worker in after.items() if before.get(lane) is worker}
        for ledger in self._ledgers.values():
            if ledger.lane not in kept:
                ledger.since = self._generation
        for number in self._numbers():
            if number in self._open and number not in self._plans:  # the others begin when they are ready
                self._begin(number, kept)

    def _begin(self, number: int, kept: Collection[int] = ()) -> None:
        if number == DISPATCHER:
            self._open[number].begin(self._dispatch_start())
            return
        on = [item for item in self._mine(number) if not item.over]
        keep, mine = [item for item in on if item.lane in kept], [item for item in on if item.lane not in kept]
        # What was dealt comes first: it may have to go on after some of it
        deals = [
            Deal.of(self._generation, item.lane, item.dealt.entries, item.dealt.over) for item in mine if item.dealt
        ]
        dealt = any(item.dealt for item in on)
        self._open[number].begin(self._shards_start(number, mine, keep, dealt=dealt), deals)

    def _shards_start(
        self, number: int, mine: list[ShardLedger], keep: list[ShardLedger], *, dealt: bool
    ) -> StartEpoch:
        assert self._epoch is not None
        return StartEpoch(
            **self._epoch.fields,
            generation=self._generation,
            shards=tuple(item.restart() for item in mine),
            keep=tuple(item.lane for item in keep),
            window=self.limits.window,
            window_bytes=self.limits.window_bytes,
            dispatch_branch=self._dispatch_branch,
            isolate_items=self._recovery.isolate_items(number),
            dealt=dealt,
        )

    def _dispatch_start(self) -> StartDispatch:
        """At the newest mark that serves all the shards that go on."""
        assert self._epoch is not None
        going_on = [item for item in self._ledgers.values() if item.branch == self._dispatch_branch and not item.over]
        start = dispatch_start({item.shard: item.cursor.snapshot for item in going_on}, self._epoch.num_shards)
        return StartDispatch(
            **self._epoch.fields,
            generation=self._generation,
            mark_position=start.mark.position,
            mark_snapshot=start.mark.snapshot,
            needed=tuple(start.needed.items()),
            isolate_before=self._dispatch_suspect,
            isolate_items=self._recovery.isolate_items(DISPATCHER),
            fail_at=self._fail_at,
        )

    def _in_order(self) -> list[Worker]:
        workers = list(self._open.values())  # a copy: another thread may ask while one is being replaced
        return sorted(workers, key=lambda worker: worker.number)

    def _worker_of(self, shard: int) -> int:
        if (number := self._assigned.get(shard)) is not None:
            return number
        return (0 if self._epoch is None else self._epoch.shards.index(shard)) % self.num_workers

    def _mine(self, number: int) -> list[ShardLedger]:
        """The lanes that need the worker."""
        ledgers = self._ledgers.values()
        return [item for item in ledgers if number == DISPATCHER or self._worker_of(item.shard) == number]


def _named(worker: Worker) -> str:
    counters = worker.counters()
    return f"{worker.name} (pid {counters.pid})" if counters is not None and counters.pid else worker.name
