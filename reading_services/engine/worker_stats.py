"""The figures of workers in an epoch, ended workers included. Nobody is asked. Runs in the main process."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable

from reading_services.engine.ledger import ShardLedger
from reading_services.engine.messages import Backlog, Notice, Report, Skipped
from reading_services.engine.workers import DISPATCHER, Worker, WorkerCounters
from torchpipe import errors
from torchpipe.errors import ReplayWarning
from torchpipe.execution.figures import EventLog, Made, ServiceFigures
from torchpipe.machine import format_bytes
from torchpipe.node.user_warnings import warn_user
from torchpipe.stats import ProcessStats, QueueStats
from torchpipe.stats.model import Section
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, MAKING, SENDING, Times

__all__ = ["WorkerStats"]

_MUCH_GROWTH_BYTES = 512_000_000


def _category(name: str) -> type[Warning]:
    """The class of warnings of that name: one of Python's or of torchpipe's; UserWarning for another one."""
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


class WorkerStats:
    """The statistics of the epoch that began last. ``figures`` are those of its end, once it is over."""

    def __init__(self) -> None:
        self._before: dict[int, WorkerCounters] = {}  # what they had done when the epoch began
        self._ended: dict[int, WorkerCounters] = {}  # what those did in it that have ended
        self._restarts: dict[int, int] = {}
        self._grown: set[int] = set()  # the pids of workers of which this was told
        self.events = EventLog()
        self.figures = ServiceFigures()

    def begin_epoch(self, workers: Iterable[Worker]) -> None:
        self._before = {worker.number: counters for worker in workers if (counters := worker.counters()) is not None}
        self._ended.clear()
        self._restarts.clear()

    def ended(self, worker: Worker) -> None:
        """It has ended: note its counters before they go."""
        counters = worker.counters()
        if counters is not None:
            self._ended[worker.number] = self._since(worker.number, counters)
        self._before.pop(worker.number, None)

    def restarted(self, number: int, name: str, text: str) -> None:
        self._restarts[number] = self._restarts.get(number, 0) + 1
        self.events.tell("restart", name, text)

    def record(self, name: str, report: Report) -> None:
        """A worker has something for the user to know: it becomes an event, or a warning, or both."""
        if isinstance(report, Skipped):
            self.events.skipped(name, report.shard, report.node, report.error, report.item, report.at)
        elif isinstance(report, Backlog):
            self.events.tell("growth", name, f"{report.items} dispatched items wait for one shard")
        elif isinstance(report, Notice):
            category = _category(report.category)
            if category is ReplayWarning:
                self.events.tell("replay", name, report.text)
            warn_user(report.text, category)

    def read(
        self, workers: Iterable[Worker], ledgers: Iterable[ShardLedger], worker_of: Callable[[int], int]
    ) -> ServiceFigures:
        """The figures of the workers in this epoch so far."""
        of_worker: dict[int, list[ShardLedger]] = {}
        for ledger in ledgers:
            of_worker.setdefault(worker_of(ledger.shard), []).append(ledger)
        rows, made = [], dict[Section, list[Made]]()
        for worker in workers:
            counters = worker.counters()
            if counters is not None:
                since = self._since(worker.number, counters)
                rows.append(self._row(worker, counters, since.times, of_worker.get(worker.number, [])))
                self._look_at_memory(worker.name, counters.pid, counters.times)
                section: Section = "dispatch" if worker.number == DISPATCHER else "shard"
                busy = rows[-1].busy_share > 0.5
                made.setdefault(section, []).append(Made(since.nodes, since.times.made, busy))
        queues = tuple(
            QueueStats(
                name=f"shard {ledger.shard}" + (f" of branch {ledger.branch}" if ledger.branch else ""),
                source=f"worker {number}",
                target="main",
                unit="chunks",
                fill=len(ledger.arrived) + ledger.in_use,
                limit=ledger.window,
                bytes=sum(arrival.nbytes for arrival in list(ledger.arrived)),
            )
            for number, mine in sorted(of_worker.items())
            for ledger in mine
        )
        return ServiceFigures(
            processes=tuple(rows),
            queues=queues,
            events=self.events.read(),
            made={section: tuple(items) for section, items in made.items()},
        )

    def _look_at_memory(self, name: str, pid: int, times: Times) -> None:
        """Tell of a worker that has come to have much for itself since it began, once, whenever that is asked for."""
        first, now = times.private_at_first_bytes, times.private_bytes
        if first and now - first > _MUCH_GROWTH_BYTES and pid not in self._grown:
            self._grown.add(pid)
            self.events.tell(
                "memory",
                name,
                f"its own memory has grown from {format_bytes(first)} to {format_bytes(now)}: a forked "
                "worker copies the lists that it reads (torchpipe.shared_list does away with that), or "
                "something keeps what it makes",
            )

    def _row(self, worker: Worker, counters: WorkerCounters, spent: Times, mine: list[ShardLedger]) -> ProcessStats:
        number, times = worker.number, counters.times
        return ProcessStats(
            name=worker.name,
            kind="dispatcher" if number == DISPATCHER else "worker",
            pid=counters.pid,
            doing=times.doing,
            doing_s=times.doing_ns / 1e9,
            shards=tuple(sorted({ledger.shard for ledger in mine})),
            restarts=self._restarts.get(number, 0),
            items=sum(ledger.count - ledger.first for ledger in mine),
            chunks=sum(ledger.chunks for ledger in mine),
            bytes=sum(ledger.nbytes for ledger in mine) if number >= 0 else spent.sent,
            making_s=spent.seconds(MAKING),
            sending_s=spent.seconds(SENDING),
            credit_wait_s=spent.seconds(AWAITING_CREDIT),
            input_wait_s=spent.seconds(AWAITING_INPUT),
            cpu_s=spent.cpu_ns / 1e9 if spent.cpu_ns > 0 else None,  # it is told now and then
            memory_bytes=times.memory_bytes or None,
            private_bytes=times.private_bytes or None,
        )

    def _since(self, number: int, counters: WorkerCounters) -> WorkerCounters:
        """The counters of a worker's number since the epoch began, its predecessors' included."""
        since = counters.since(self._before.get(number))
        if number in self._ended:
            since.add(self._ended[number])
        return since
