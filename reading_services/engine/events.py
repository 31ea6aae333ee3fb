"""What happens to workers, and what comes of them: each event is handed to whoever it concerns.

Runs in the main process, under the supervisor's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from reading_services.engine.lanes import Lanes
from reading_services.engine.messages import Backlog, Report, Skipped
from reading_services.engine.open_workers import OpenWorkers
from reading_services.engine.restarts import Restarts
from reading_services.engine.worker_stats import WorkerStats
from reading_services.engine.workers import (
    ChunkArrived,
    Event,
    Failed,
    Gone,
    Late,
    Leaving,
    NoRoomHere,
    Ready,
    Reported,
    Worker,
)

__all__ = ["EventHandler"]

_log = logging.getLogger("torchpipe")

_LONG_BACKLOG = 1000


class EventHandler:
    """``longest_backlog``: of items that have waited in the dispatcher for one shard."""

    def __init__(self, workers: OpenWorkers, lanes: Lanes, restarts: Restarts, stats: WorkerStats) -> None:
        self.longest_backlog = 0
        self._workers, self._lanes, self._restarts, self._stats = workers, lanes, restarts, stats

    def handle(self, events: Iterable[Event], *, recover: bool = True) -> None:
        """``recover``: open anew what has ended, if it is needed in this epoch.

        Raises: the first of what handling them has raised, when all is handled: nothing must be lost.
        """
        errors: list[Exception] = []
        for event in events:
            if not self._workers.has(event.worker):
                if isinstance(event, Failed | Gone):  # of a successor, or of one that was dropped
                    self._workers.drop_successor(event.worker)
                continue
            try:
                self._handle(event, recover)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def handle_pending(self) -> None:
        """What is known already, before an epoch begins or shards are moved."""
        for worker in self._workers:
            self.handle(self._workers.pending(worker), recover=False)

    def _handle(self, event: Event, recover: bool) -> None:
        match event:
            case ChunkArrived(worker=worker, generation=generation, lane=lane, arrival=arrival):
                if (ledger := self._lanes.wanted(lane, generation)) is not None:
                    reports, ledger.reports = ledger.reports, []
                    for report in reports:
                        self._stats.record(worker.name, report)
                    ledger.arrive(arrival)
            case Reported(worker=worker, report=report):
                self._record(worker, report)
            case Failed(worker=worker, error=error):
                self._workers.failed.add(worker.number)
                self._lanes.failure = error
            case Gone(worker=worker, end=end):
                if recover:
                    self._restarts.recover(worker, end)
                else:
                    self._restarts.note_idle_death(worker, end)
            case Leaving(worker=worker):
                self._workers.open_successor(worker)
            case NoRoomHere(worker=worker):
                if not worker.ready:  # else it has found room meanwhile
                    self._restarts.open_elsewhere(worker)
            case Late(worker=worker):
                self._workers.late.add(worker.number)
            case Ready():
                pass  # the worker knows; plans are carried out with each wait

    def _record(self, worker: Worker, report: Report) -> None:
        if isinstance(report, Skipped) and report.lane >= 0:
            if (ledger := self._lanes.wanted(report.lane, report.generation)) is not None:
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
        self._stats.record(worker.name, report)
