"""The workers of a loader: which are open, what happens to them, and what each begins.

Runs in the main process, under the supervisor's lock. Owns what the pool has opened: nobody else opens or drops one.
Recovery is restore: a worker that ends is opened anew and begins at the cursors after what has arrived. With a
dispatcher, any death sets back all: what one worker had been dealt can only come again from the dispatcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from reading_services.engine.lanes import Lanes
from reading_services.engine.messages import Backlog, Report, Skipped
from reading_services.engine.recovery import Death, Decision, Recovery, RestartPlan
from reading_services.engine.worker_stats import WorkerStats
from reading_services.engine.workers import (
    DISPATCHER,
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
    WorkerPool,
)

__all__ = ["Crew"]

_log = logging.getLogger("torchpipe")

_LONG_BACKLOG = 1000


class Crew:
    """The dispatcher is one of them. ``restarts`` counts those that were replaced so far, ever; ``clock``: seconds.

    ``longest_backlog``: of items that have waited in the dispatcher for one shard.
    """

    def __init__(self, pool: WorkerPool, lanes: Lanes, restarts: int, clock: Callable[[], float]) -> None:
        self.lanes, self.restarts, self.clock = lanes, restarts, clock
        self.stats = WorkerStats()
        self.longest_backlog = 0
        self.late: set[int] = set()  # have not started in time, as was said since it was last decided about
        self._pool = pool
        self._open: dict[int, Worker] = {}
        self._successors: dict[int, Worker] = {}  # of those that will end soon
        self._failed: set[int] = set()  # have said why they cannot go on, and end by themselves
        self._recovery = Recovery(lanes.limits.deaths.max_deaths)
        self._plans: dict[int, RestartPlan] = {}  # by number: of those that have ended and have yet to begin
        self._idle_deaths: dict[int, Death] = {}  # when nothing was needed of them: missed in the next epoch

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def __getitem__(self, number: int) -> Worker:
        return self._open[number]

    def __iter__(self) -> Iterator[Worker]:
        """The open workers, in the order of their numbers. Any thread: another one may replace some meanwhile."""
        return iter(sorted(self._open.values(), key=lambda worker: worker.number))

    def is_ready(self, number: int) -> bool:
        """True if the worker is open and can begin."""
        return number in self._open and self._open[number].ready

    def has_plan(self, number: int) -> bool:
        """True if the worker gets all that it is to make when it begins, and nothing before."""
        return number in self._plans

    def waits_s(self) -> list[float]:
        """The seconds until each plan that is not due yet. For one that is due, a worker is being started, and an event
        will say that it is ready.
        """
        now = self.clock()
        return [plan.start_at - now for plan in self._plans.values() if plan.start_at > now]

    def begin_epoch(self) -> None:
        """No death of the epoch before is charged to anything in this one."""
        self._recovery.begin_epoch()
        self._plans.clear()

    def end_epoch(self) -> None:
        """Nobody is to begin any more."""
        self._plans.clear()

    # --- what happens to workers

    def handle(self, events: Iterable[Event], *, recover: bool = True) -> None:
        """``recover``: open anew what has ended, if it is needed in this epoch.

        Raises: the first of what handling them has raised, when all is handled: nothing must be lost.
        """
        errors: list[Exception] = []
        for event in events:
            if self._open.get(event.worker.number) is not event.worker:
                if isinstance(event, Failed | Gone):  # of a successor, or of one that was dropped
                    self._drop_successor(event.worker)
                continue
            try:
                self._handle(event, recover)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _handle(self, event: Event, recover: bool) -> None:
        match event:
            case ChunkArrived(worker=worker, generation=generation, lane=lane, arrival=arrival):
                if (ledger := self.lanes.wanted(lane, generation)) is not None:
                    reports, ledger.reports = ledger.reports, []
                    for report in reports:
                        self.stats.record(worker.name, report)
                    ledger.arrive(arrival)
            case Reported(worker=worker, report=report):
                self._record(worker, report)
            case Failed(worker=worker, error=error):
                self._failed.add(worker.number)
                self.lanes.failure = error
            case Gone(worker=worker, end=end):
                self._recover(worker, end, needed=recover)
            case Leaving(worker=worker):
                self._open_successor(worker)
            case NoRoomHere(worker=worker):
                if not worker.ready:  # else it has found room meanwhile
                    self._open_elsewhere(worker)
            case Late(worker=worker):
                self.late.add(worker.number)
            case Ready():
                pass  # the worker knows; plans are carried out with each wait

    def _record(self, worker: Worker, report: Report) -> None:
        if isinstance(report, Skipped) and report.lane >= 0:
            if (ledger := self.lanes.wanted(report.lane, report.generation)) is not None:
                ledger.reports.append(report)  # until its chunk has come: else another worker makes that again
            return
        if isinstance(report, Backlog):
            self.longest_backlog = max(self.longest_backlog, report.items)
            level = logging.WARNING if report.items >= _LONG_BACKLOG else logging.DEBUG
            _log.log(
                level,
                "%d dispatched items wait for one shard: the others drop more of theirs. Filter before sharding",
                report.items,
            )
        self.stats.record(worker.name, report)

    def _recover(self, worker: Worker, end: End, *, needed: bool) -> None:
        """A worker has ended: plan to open it anew, or let what has ended it too often be an error. ``needed`` False:
        it has ended between two epochs, or before one has begun.
        """
        number, lanes, epoch = worker.number, self.lanes, self.lanes.epoch
        death = Death(
            name=worker.name,
            end=end,
            dispatcher=number == DISPATCHER,
            num_shards=None if epoch is None else epoch.num_shards,
            torch_wording=lanes.limits.torch_wording,
        )
        if not needed or lanes.failure is not None or not (lanes.needs(number) or lanes.may_need(number)):
            self._plans.pop(number, None)
            if number not in self._failed:  # else it has said why, and its error is raised
                _log.warning("%s: it is not needed in this epoch, and is restarted with the next", death)
                self._idle_deaths[number] = death
                self.stats.events.tell("lost", worker.name, str(death))
            self._drop(number)
            return
        # A worker that ends before it is ready has been dealt nothing in this generation; a dispatcher is waited for
        before = self._plans.pop(number, None)
        all_anew = worker.ready or number == DISPATCHER if before is None else before.all_anew
        self._drop(number)
        progress = tuple(item.count for item in lanes.of_worker(number))
        decision = self._recovery.record(number, end, progress, dispatcher=death.dispatcher)
        spent = lanes.limits.deaths.spent(self.restarts)
        lanes.isolate(end, dispatcher=death.dispatcher)
        if decision.give_up or spent:
            error = death.error(decision, lanes.limits.deaths.max_restarts)
            if spent:
                lanes.fail_worker(number, error)
            else:
                lanes.fail_item(end, error, number=number)
        else:
            _log.warning(
                "%s: %s", death, death.consequence(decision, lanes.limits.deaths.max_deaths, self.restarts + 1)
            )
        if lanes.needs(number) or not (decision.give_up or spent):
            self.restarts += 1
            self.stats.restarted(number, worker.name, str(death))
            self._plans[number] = RestartPlan(self.clock() + decision.delay_s, lanes.dispatched and all_anew)
            self.carry_out_plans()

    # --- who is open

    def open_missing(self) -> None:
        """Open the workers that there should be and are not: all of them before any is waited for. Raises: OSError."""
        for worker in self:
            self.handle(self._pool.pending(worker), recover=False)
        lanes = self.lanes
        for number in [number for number in lanes.numbers() if number not in self._open]:
            if number not in self._idle_deaths or not lanes.limits.deaths.spent(self.restarts):
                self._open_one(number)
                self.restarts += self._idle_deaths.pop(number, None) is not None
            elif lanes.needs(number):  # it is missed
                death = self._idle_deaths.pop(number)
                lanes.fail_worker(number, death.error(Decision(deaths=0), lanes.limits.deaths.max_restarts))

    def open_more(self, end: int) -> None:
        """Open also those up to ``end``, which count when the lanes have so many: all or none. Raises: OSError."""
        opened: dict[int, Worker] = {}
        try:
            for number in range(self.lanes.num_workers, end):
                opened[number] = self._pool.open(number)
        except BaseException:
            for worker in opened.values():
                self._pool.drop(worker)
            raise
        self._open.update(opened)

    def _open_one(self, number: int) -> None:
        """Open a worker, or let its successor stand for it. Raises: OSError."""
        stands = number in self._successors
        self._open[number] = self._successors.pop(number) if stands else self._pool.open(number)

    def _open_elsewhere(self, worker: Worker) -> None:
        """It has found no room where it was put. It has been sent what to begin, and has begun nothing."""
        number, plan = worker.number, self._plans.pop(worker.number, None)
        _log.info(
            "%s found no free resources on the node that it was assigned to: starting it on another one", worker.name
        )
        self._drop(number)
        self._open_one(number)
        if self.lanes.epoch is not None:
            self._plans[number] = plan or RestartPlan(self.clock(), self.lanes.dispatched and number == DISPATCHER)

    def _open_successor(self, worker: Worker) -> None:
        """The worker will end soon: open another one beside it."""
        if worker.number not in self._successors:
            _log.warning("%s is about to be shut down: starting its replacement", worker.name)
            self.stats.events.tell(
                "restart", worker.name, f"{worker.name} is about to be shut down: its replacement is being started"
            )
            self._successors[worker.number] = self._pool.open(worker.number)

    def _drop(self, number: int) -> None:
        """Let go of a worker, which has ended or is to end. What it has done is added to the figures."""
        worker = self._open.pop(number)
        self.stats.ended(worker)
        self._failed.discard(number)
        self._pool.drop(worker)

    def _drop_successor(self, worker: Worker) -> None:
        """One that ends before it has taken over is opened again when its predecessor has ended."""
        if self._successors.get(worker.number) is worker:
            self._pool.drop(self._successors.pop(worker.number))

    def dismiss(self, number: int) -> None:
        """Let go of a worker that is open: it is one too many, or can be no help."""
        self._plans.pop(number, None)
        self._drop(number)

    def dismiss_from(self, first: int) -> None:
        """There should be no workers from ``first`` on."""
        for number in [number for number in self._open if number >= first]:
            self.dismiss(number)
        for worker in [worker for number, worker in self._successors.items() if number >= first]:
            self._drop_successor(worker)
        for counted in (self._plans, self._idle_deaths):  # nobody misses one that has ended
            for number in [number for number in counted if number >= first]:
                del counted[number]

    def late_error(self, worker: Worker) -> Exception:
        """The error of a worker that is late."""
        return self._pool.late_error(worker)

    # --- who begins what

    def carry_out_plans(self) -> None:
        """Open anew the workers whose time has come, and let begin those that are ready."""
        self._swap_in_successors()
        now = self.clock()
        for number, plan in list(self._plans.items()):
            if number not in self._open and plan.start_at <= now:
                self._open_one(number)
            # Once it is ready: others get on meanwhile, and one that ends while it starts sets nobody back
            if self.is_ready(number):
                del self._plans[number]
                if plan.all_anew:
                    self.begin_all()
                else:
                    self._begin(number)

    def _swap_in_successors(self) -> None:
        """Let successors that are ready stand for their predecessors, which still live."""
        ready = [number for number, worker in self._successors.items() if worker.ready and number in self._open]
        for number in ready:
            if number not in self._plans:
                self._drop(number)
                self._open_one(number)
                if self.lanes.epoch is not None:
                    self._plans[number] = RestartPlan(self.clock(), all_anew=self.lanes.dispatched)

    def begin_all(self) -> None:
        """Begin a new generation: the dispatcher at the newest mark that serves all shards, and every worker."""
        self.begin_moved({})

    def at_work(self) -> dict[int, Worker]:
        """The workers that have been sent what to begin, by the lanes that they host."""
        found = {}
        for item in self.lanes.ledgers():
            number = self.lanes.worker_of(item.shard)
            if number in self._open and number not in self._plans:
                found[item.lane] = self._open[number]
        return found

    def begin_moved(self, before: Mapping[int, Worker]) -> None:
        """Begin a new generation, in which lanes go on that have the worker they had ``before``; but where items are
        dispatched, since these come again from the dispatcher alone.
        """
        after = {} if self.lanes.dispatched else self.at_work()
        kept = {lane for lane, worker in after.items() if before.get(lane) is worker}
        self.lanes.next_generation(kept)
        for number in self.lanes.numbers():
            if number in self._open and number not in self._plans:  # the others begin when they are ready
                self._begin(number, kept)

    def _begin(self, number: int, kept: Collection[int] = ()) -> None:
        isolate_items = self._recovery.isolate_items(number)
        if number == DISPATCHER:
            self._open[number].begin(self.lanes.dispatcher_start(isolate_items=isolate_items))
        else:
            self._open[number].begin(*self.lanes.start_of(number, kept, isolate_items=isolate_items))
