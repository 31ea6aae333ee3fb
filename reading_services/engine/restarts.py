"""Lets workers begin what they are to make: at the start of an epoch, after a move, and anew after a death.

Runs in the main process, under the supervisor's lock. Recovery is restore: a worker that ends is opened anew and begins
at the cursors after what has arrived. With a dispatcher, any death sets back all: what one worker had been dealt can
only come again from the dispatcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from reading_services.engine.deaths import Death
from reading_services.engine.lanes import Lanes
from reading_services.engine.open_workers import OpenWorkers
from reading_services.engine.recovery import SPENT, Plan, Recovery
from reading_services.engine.worker_stats import WorkerStats
from reading_services.engine.workers import DISPATCHER, End, Worker

__all__ = ["Restarts"]

_log = logging.getLogger("torchpipe")


class Restarts:
    """``count``: of workers that have been replaced so far, ever. ``clock``: seconds."""

    def __init__(
        self, workers: OpenWorkers, lanes: Lanes, stats: WorkerStats, count: int, clock: Callable[[], float]
    ) -> None:
        self.count = count
        self._workers, self._lanes, self._stats, self._clock = workers, lanes, stats, clock
        self._recovery = Recovery(lanes.limits.max_deaths)
        self._plans: dict[int, Plan] = {}  # by number: of those that have ended and have yet to begin
        self._idle_deaths: dict[int, Death] = {}  # when nothing was needed of them: missed in the next epoch

    def begin_epoch(self) -> None:
        """No death of the epoch before is charged to anything in this one."""
        self._recovery.begin_epoch()
        self._plans.clear()

    def end_epoch(self) -> None:
        """Nobody is to begin any more."""
        self._plans.clear()

    def has_plan(self, number: int) -> bool:
        """True if the worker gets all that it is to make when it begins, and nothing before."""
        return number in self._plans

    def waits_s(self) -> list[float]:
        """How long it is until each plan that is not due yet. For one that is due, a worker is being started, and an
        event will say that it is ready.
        """
        now = self._clock()
        return [plan.start_at - now for plan in self._plans.values() if plan.start_at > now]

    # --- deaths

    def recover(self, worker: Worker, end: End) -> None:
        """A worker has ended: plan to open it anew, or let what has ended it too often be an error."""
        number, lanes, death = worker.number, self._lanes, self._death(worker, end)
        if lanes.failure is not None or not (lanes.needs(number) or lanes.may_need(number)):
            self._note_idle_death(worker, death)
            return
        # A worker that ends before it is ready has been dealt nothing in this generation; a dispatcher is waited for
        before = self._plans.pop(number, None)
        all_anew = worker.ready or number == DISPATCHER if before is None else before.all_anew
        self._workers.drop(number)
        if lanes.limits.spent(self.count):
            decision = SPENT
        else:
            progress = tuple(item.count for item in lanes.of_worker(number))
            decision = self._recovery.record(number, end, progress, dispatcher=death.dispatcher)
        lanes.isolate(end, dispatcher=death.dispatcher)
        if decision.give_up:
            error = death.error(decision, lanes.limits.max_restarts)
            if decision.exhausted:
                lanes.fail_worker(number, error)
            else:
                lanes.fail_item(end, error, number=number)
        else:
            _log.warning("%s: %s", death, death.consequence(decision, lanes.limits.max_deaths, self.count + 1))
        if lanes.needs(number) or not decision.give_up:
            self.count += 1
            self._stats.restarted(number, worker.name, str(death))
            self._plans[number] = Plan(self._clock() + decision.delay_s, lanes.dispatched and all_anew)
            self.carry_out_plans()

    def note_idle_death(self, worker: Worker, end: End) -> None:
        """A worker has ended between two epochs, or before one has begun."""
        self._note_idle_death(worker, self._death(worker, end))

    def _note_idle_death(self, worker: Worker, death: Death) -> None:
        """Nothing more is needed of it in this epoch."""
        self._plans.pop(worker.number, None)
        if worker.number not in self._workers.failed:  # else it has said why, and its error is raised
            _log.warning("%s: it is not needed in this epoch, and is restarted with the next", death)
            self._idle_deaths[worker.number] = death
            self._stats.events.tell("lost", worker.name, str(death))
        self._workers.drop(worker.number)

    def _death(self, worker: Worker, end: End) -> Death:
        epoch = self._lanes.epoch
        return Death(
            name=worker.name,
            end=end,
            dispatcher=worker.number == DISPATCHER,
            num_shards=None if epoch is None else epoch.num_shards,
            torch_wording=self._lanes.limits.torch_wording,
        )

    # --- who is opened, and when

    def open_missing(self) -> None:
        """Open the workers that there should be and are not. Raises: OSError."""
        lanes = self._lanes
        for number in [number for number in lanes.numbers() if number not in self._workers]:
            if number not in self._idle_deaths or not lanes.limits.spent(self.count):
                self._workers.open(number)
                self.count += self._idle_deaths.pop(number, None) is not None
            elif lanes.needs(number):  # it is missed
                death = self._idle_deaths.pop(number)
                lanes.fail_worker(number, death.error(SPENT, lanes.limits.max_restarts))

    def open_elsewhere(self, worker: Worker) -> None:
        """It has found no room where it was put. It has been sent what to begin, and has begun nothing."""
        number, plan = worker.number, self._plans.pop(worker.number, None)
        _log.info(
            "%s found no free resources on the node that it was assigned to: starting it on another one", worker.name
        )
        self._workers.drop(number)
        self._workers.open(number)
        if self._lanes.epoch is not None:
            self._plans[number] = plan or Plan(self._clock(), self._lanes.dispatched and number == DISPATCHER)

    def dismiss(self, number: int) -> None:
        """Let go of a worker that is open: it is one too many, or can be no help."""
        self._plans.pop(number, None)
        self._workers.drop(number)

    def dismiss_from(self, first: int) -> None:
        """There should be no workers from ``first`` on."""
        for number in self._workers.numbers_from(first):
            self.dismiss(number)
        self._workers.drop_successors_from(first)
        for counted in (self._plans, self._idle_deaths):  # nobody misses one that has ended
            for number in [number for number in counted if number >= first]:
                del counted[number]

    def carry_out_plans(self) -> None:
        """Open anew the workers whose time has come, and let begin those that are ready."""
        self._swap_in_successors()
        now = self._clock()
        for number, plan in list(self._plans.items()):
            if number not in self._workers and plan.start_at <= now:
                self._workers.open(number)
            # Once it is ready: others get on meanwhile, and one that ends while it starts sets nobody back
            if self._workers.is_ready(number):
                del self._plans[number]
                if plan.all_anew:
                    self.begin_all()
                else:
                    self._begin(number)

    def _swap_in_successors(self) -> None:
        """Let successors that are ready stand for their predecessors, which still live."""
        for number in self._workers.ready_successors():
            if number not in self._plans:
                self._workers.swap_in_successor(number)
                if self._lanes.epoch is not None:
                    self._plans[number] = Plan(self._clock(), all_anew=self._lanes.dispatched)

    # --- who begins what

    def begin_all(self) -> None:
        """Begin a new generation: the dispatcher at the newest mark that serves all shards, and every worker."""
        self.begin_moved({})

    def at_work(self) -> dict[int, Worker]:
        """The workers that have been sent what to begin, by the lanes that they host."""
        found = {}
        for item in self._lanes.ledgers():
            number = self._lanes.worker_of(item.shard)
            if number in self._workers and number not in self._plans:
                found[item.lane] = self._workers[number]
        return found

    def begin_moved(self, before: Mapping[int, Worker]) -> None:
        """Begin a new generation, in which lanes go on that have the worker they had ``before``; but where items are
        dispatched, since these come again from the dispatcher alone.
        """
        after = {} if self._lanes.dispatched else self.at_work()
        kept = {lane for lane, worker in after.items() if before.get(lane) is worker}
        self._lanes.next_generation(kept)
        for number in self._lanes.numbers():
            if number in self._workers and number not in self._plans:  # the others begin when they are ready
                self._begin(number, kept)

    def _begin(self, number: int, kept: Collection[int] = ()) -> None:
        isolate_items = self._recovery.isolate_items(number)
        if number == DISPATCHER:
            self._workers[number].begin(self._lanes.dispatcher_start(isolate_items=isolate_items))
        else:
            self._workers[number].begin(*self._lanes.start_of(number, kept, isolate_items=isolate_items))
