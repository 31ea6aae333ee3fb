"""What the processes of a supervisor have done in an epoch, those that have died in it included.

Runs in the main process. Read from their pages and from what arrived: nobody is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from reading_services._supervision.arrivals import warning_category
from reading_services._supervision.ledger import ShardLedger
from reading_services._supervision.process import WorkerProcess
from reading_services._transport.messages import Notice, Skipped, Told
from torchpipe.errors import ReplayWarning
from torchpipe.node.announce import warn_user
from torchpipe.stats import ProcessStats, QueueStats
from torchpipe.stats.model import Section
from torchpipe.stats.node_sheet import Figures
from torchpipe.stats.nodes import Made
from torchpipe.stats.service import EventLog, ServiceFigures
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, MAKING, SENDING, Times

__all__ = ["Accounts"]


class Accounts:
    """Of the epoch that has begun last. ``figures`` are those of its end, once it is over."""

    def __init__(self) -> None:
        self._before: dict[int, _Noted] = {}  # what their pages said when the epoch began
        self._dead: dict[int, _Noted] = {}  # what those did in it that are gone
        self._restarts: dict[int, int] = {}
        self.events = EventLog()
        self.figures = ServiceFigures()

    def begin_epoch(self, processes: Iterable[WorkerProcess]) -> None:
        self._before = {worker.worker: noted for worker in processes if (noted := _Noted.of(worker)) is not None}
        self._dead.clear()
        self._restarts.clear()

    def buried(self, worker: WorkerProcess) -> None:
        """It has ended, and its page is about to go."""
        noted = _Noted.of(worker)
        if noted is not None:
            self._dead[worker.worker] = self._since(worker.worker, noted)
        self._before.pop(worker.worker, None)

    def restarted(self, number: int, name: str, text: str) -> None:
        self._restarts[number] = self._restarts.get(number, 0) + 1
        self.events.tell("restart", name, text)

    def hear(self, name: str, message: Told) -> None:
        """A process has something for the user to know: it becomes an event, or a warning, or both."""
        if isinstance(message, Skipped):
            self.events.skipped(name, message.shard, message.node, message.error, message.item, message.at)
        elif isinstance(message, Notice):
            if message.category == ReplayWarning.__name__:
                self.events.tell("replay", name, message.text)
            warn_user(message.text, warning_category(message.category))

    def read(
        self,
        processes: Iterable[WorkerProcess],
        ledgers: Iterable[ShardLedger],
        worker_of: Callable[[int], int],
    ) -> ServiceFigures:
        """What they have done in this epoch so far."""
        of_worker: dict[int, list[ShardLedger]] = {}
        for ledger in ledgers:
            of_worker.setdefault(worker_of(ledger.shard), []).append(ledger)
        rows, made = [], dict[Section, list[Made]]()
        for worker in processes:
            noted = _Noted.of(worker)
            if noted is not None:
                since = self._since(worker.worker, noted)
                rows.append(self._row(worker, noted.times, since.times, of_worker.get(worker.worker, [])))
                section: Section = "dispatch" if worker.worker < 0 else "shard"
                busy = rows[-1].busy_share > 0.5
                made.setdefault(section, []).append(Made(since.figures, since.times.made, busy))
        queues = tuple(
            QueueStats(
                name=f"shard {ledger.shard}" + (f" of branch {ledger.branch}" if ledger.branch else ""),
                source=f"worker {number}",
                target="main",
                unit="chunks",
                fill=len(ledger.ready) + ledger.in_use,
                limit=ledger.window,
                bytes=sum(arrival.nbytes for arrival in list(ledger.ready)),
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

    def _row(self, worker: WorkerProcess, times: Times, spent: Times, mine: list[ShardLedger]) -> ProcessStats:
        number = worker.worker
        return ProcessStats(
            name=worker.name,
            kind="dispatcher" if number < 0 else "worker",
            pid=worker.pid,
            doing=times.doing,
            doing_s=times.doing_ns / 1e9,
            node=None if times.node < 0 else times.node,
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
        )

    def _since(self, number: int, noted: _Noted) -> _Noted:
        """What was done after the epoch began, by those before it as well."""
        since = noted.copy()
        if number in self._before:
            since.add(self._before[number], -1)
        if number in self._dead:
            since.add(self._dead[number])
        return since


@dataclass
class _Noted:
    """What a process has noted on its page."""

    times: Times
    figures: list[Figures]

    @classmethod
    def of(cls, worker: WorkerProcess) -> _Noted | None:
        page = worker.page
        try:
            return cls(page.times.read(), page.sheet.read() if page.times.wanted else [])
        except ValueError:  # its page has gone a moment ago
            return None

    def copy(self) -> _Noted:
        copied = _Noted(Times(), [Figures() for _ in self.figures])
        copied.add(self)
        return copied

    def add(self, other: _Noted, sign: int = 1) -> None:
        self.times.add(other.times, sign)
        for mine, theirs in zip(self.figures, other.figures):
            mine.add(theirs, sign)
