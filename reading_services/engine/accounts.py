"""What places have done in an epoch, those that have ended in it included. Nobody is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reading_services.engine.ledger import ShardLedger
from reading_services.engine.messages import Backlog, Notice, Report, Skipped
from reading_services.engine.places import DISPATCHER, Noted, Place
from torchpipe.errors import ReplayWarning
from torchpipe.node.announce import warn_user
from torchpipe.stats import ProcessStats, QueueStats
from torchpipe.stats.model import Section
from torchpipe.stats.nodes import Made
from torchpipe.stats.service import EventLog, ServiceFigures
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, MAKING, SENDING, Times

__all__ = ["Accounts"]


class Accounts:
    """Of the epoch that has begun last. ``figures`` are those of its end, once it is over."""

    def __init__(self) -> None:
        self._before: dict[int, Noted] = {}  # what they had done when the epoch began
        self._ended: dict[int, Noted] = {}  # what those did in it that have ended
        self._restarts: dict[int, int] = {}
        self.events = EventLog()
        self.figures = ServiceFigures()

    def begin_epoch(self, places: Iterable[Place]) -> None:
        self._before = {place.number: noted for place in places if (noted := place.noted()) is not None}
        self._ended.clear()
        self._restarts.clear()

    def ended(self, place: Place) -> None:
        """It has ended, and what it has noted is about to go."""
        noted = place.noted()
        if noted is not None:
            self._ended[place.number] = self._since(place.number, noted)
        self._before.pop(place.number, None)

    def restarted(self, number: int, name: str, text: str) -> None:
        self._restarts[number] = self._restarts.get(number, 0) + 1
        self.events.tell("restart", name, text)

    def hear(self, name: str, report: Report) -> None:
        """A place has something for the user to know: it becomes an event, or a warning, or both."""
        if isinstance(report, Skipped):
            self.events.skipped(name, report.shard, report.node, report.error, report.item, report.at)
        elif isinstance(report, Backlog):
            self.events.tell("growth", name, f"{report.items} dispatched items wait for one shard")
        elif isinstance(report, Notice):
            replay = report.category == ReplayWarning.__name__
            if replay:
                self.events.tell("replay", name, report.text)
            warn_user(report.text, ReplayWarning if replay else UserWarning)

    def read(
        self, places: Iterable[Place], ledgers: Iterable[ShardLedger], worker_of: Callable[[int], int]
    ) -> ServiceFigures:
        """What they have done in this epoch so far."""
        of_worker: dict[int, list[ShardLedger]] = {}
        for ledger in ledgers:
            of_worker.setdefault(worker_of(ledger.shard), []).append(ledger)
        rows, made = [], dict[Section, list[Made]]()
        for place in places:
            noted = place.noted()
            if noted is not None:
                since = self._since(place.number, noted)
                rows.append(self._row(place, noted, since.times, of_worker.get(place.number, [])))
                section: Section = "dispatch" if place.number == DISPATCHER else "shard"
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

    def _row(self, place: Place, noted: Noted, spent: Times, mine: list[ShardLedger]) -> ProcessStats:
        number, times = place.number, noted.times
        return ProcessStats(
            name=place.name,
            kind="dispatcher" if number == DISPATCHER else "worker",
            pid=noted.pid,
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

    def _since(self, number: int, noted: Noted) -> Noted:
        """What was done after the epoch began, by those before it as well."""
        since = noted.copy()
        if number in self._before:
            since.add(self._before[number], -1)
        if number in self._ended:
            since.add(self._ended[number])
        return since
