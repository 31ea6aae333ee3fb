"""The figures of nodes and of the processes that run them: from what all processes note to a row for each node of a
plan.

Runs in the user's process. Where all items were timed, the figures are exact. Where timing was given up, since items
are quick, what was timed speaks for the rest: it is scaled by (items produced) / (items timed) of the last node.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchpipe.execution.dispatch import Dispatched
from torchpipe.execution.shard import Shard
from torchpipe.graph.draw import rows_of_plan
from torchpipe.graph.plan import Plan
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.traits import DataPipe, walk
from torchpipe.stats.model import Event, NodeStats, ProcessStats, QueueStats, Section
from torchpipe.stats.sheet import BYTES, ERRORS, ITEMS, SELF_NS, SIZED, SKIPPED, Figures, NodeSheet
from torchpipe.stats.tracing import ThreadTracing, Tracing

__all__ = ["EventLog", "Made", "Measuring", "ServiceFigures", "ServiceStats", "with_figures"]


@dataclass(frozen=True)
class Made:
    """The figures that one process or thread has noted itself, and the number of items that arrived from it.

    ``produced`` items of its last node came from it; making them is most of its time if it is ``busy``. Without
    ``whole``, not all items were timed, and how many there were is not known.
    """

    figures: Sequence[Figures]
    produced: int
    busy: bool
    whole: bool = True


def with_figures(
    rows: Sequence[NodeStats], numbers: Mapping[int, int], last: Collection[int], made: Sequence[Made]
) -> tuple[NodeStats, ...]:
    """``rows`` of one section with figures. ``numbers``: of the rows, by the numbers that the processes have for nodes;
    ``last`` are the rows that hand on what was produced.
    """
    if not any(item.figures for item in made):
        return tuple(rows)
    by_row = {number: index for index, number in numbers.items()}
    totals = {row.number: Figures() for row in rows}
    busiest: dict[int, int] = {}
    for item in made:
        own_ns = {}
        for row in rows:
            index = by_row.get(row.number, -1)
            if 0 <= index < len(item.figures):
                totals[row.number].add(item.figures[index])
                own_ns[row.number] = item.figures[index][SELF_NS]
        if item.busy and any(own_ns.values()):
            slowest = max(own_ns, key=lambda number: own_ns[number])
            busiest[slowest] = busiest.get(slowest, 0) + 1
    produced = sum(item.produced for item in made)
    timed = sum(_timed(rows, totals, number) for number in last)
    exact = timed >= produced and all(item.whole for item in made)
    filled: list[NodeStats] = []
    for row in rows:
        figures = totals[row.number]
        if not figures[ITEMS] and not figures[SELF_NS]:
            filled.append(_passing_on(row, filled, len(made)))
            continue
        factor = 1.0 if exact or not timed or not produced else produced / timed
        items, self_s = round(figures[ITEMS] * factor), figures[SELF_NS] / 1e9 * factor
        filled.append(
            replace(
                row,
                processes=len(made),
                busy=busiest.get(row.number, 0),
                items=items,
                self_s=self_s,
                mean_s=self_s / max(1, items),
                p90_s=figures.quantile(0.9),
                p99_s=figures.quantile(0.99),
                errors=figures[ERRORS],
                skipped=figures[SKIPPED],
                bytes=round(figures[BYTES] / figures[SIZED] * items) if figures[BYTES] else None,
                exact=exact,
            )
        )
    return tuple(filled)


def _timed(rows: Sequence[NodeStats], totals: Mapping[int, Figures], number: int) -> int:
    """The number of timed items of a row; for a node that hands on its input's own stream, those of the input."""
    if number in totals and not totals[number][ITEMS]:
        inputs = next(row.inputs for row in rows if row.number == number)
        return _timed(rows, totals, inputs[0]) if len(inputs) == 1 else 0
    return totals[number][ITEMS] if number in totals else 0


def _passing_on(row: NodeStats, before: Sequence[NodeStats], processes: int) -> NodeStats:
    """A row without figures of its own: it does nothing but hand on its input's stream, or has not begun."""
    given = [other for other in before if other.number in row.inputs]
    if len(given) != 1 or given[0].items is None:
        return replace(row, processes=processes)
    before_it = given[0]
    return replace(
        row, processes=processes, items=before_it.items, self_s=0.0, bytes=before_it.bytes, exact=before_it.exact
    )


_MOST_EVENTS = 200
_MOST_SKIPS = 100  # besides: however many items are left out, no restart is forgotten for them


@dataclass(frozen=True, kw_only=True)
class ServiceStats:
    """The history of a service's processes, over its whole life.

    ``restarts`` processes have died and been replaced; ``processes`` are alive just now. ``longest_dispatch_buffer`` is
    the largest number of dispatched items that waited for one shard while others starved (0: fewer than 256).
    """

    restarts: int
    processes: int
    longest_dispatch_buffer: int


@dataclass(frozen=True, kw_only=True)
class ServiceFigures:
    """The figures of the epoch that is under way, or of the last one. Fields are those of ``LoaderStats``."""

    workers: int = 0
    method: str = "in process"
    dispatcher: bool = False
    restarts: int = 0
    longest_dispatch_buffer: int = 0
    nodes: tuple[NodeStats, ...] = ()
    processes: tuple[ProcessStats, ...] = ()
    queues: tuple[QueueStats, ...] = ()
    events: tuple[Event, ...] = ()
    made: Mapping[Section, tuple[Made, ...]] = field(default_factory=dict)  # what ``nodes`` are to be filled with


class EventLog:
    """The latest events; the oldest go where there are very many. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal's handler may ask for the figures
        self._events = deque[Event](maxlen=_MOST_EVENTS)
        self._skips = deque[Event](maxlen=_MOST_SKIPS)

    def tell(self, kind: Any, process: str, text: str) -> None:
        """That it happened now."""
        with self._lock:
            self._events.append(Event(at=time.time(), kind=kind, process=process, text=text))

    def skipped(
        self, process: str, shard: int | None, node: str, error: str, item: str, at: float | None = None
    ) -> None:
        """That an item was left out, now or ``at`` some time."""
        where = "" if shard is None else f" of shard {shard}"
        text = f"{node}{where} left out an item: {error}" + (f" (for {item})" if item else "")
        happened_at = time.time() if at is None else at
        with self._lock:
            self._skips.append(
                Event(at=happened_at, kind="skip", process=process, text=text, node=node, shard=shard, error=error)
            )

    def read(self) -> tuple[Event, ...]:
        """In the order in which it happened."""
        with self._lock:
            return tuple(sorted((*self._events, *self._skips), key=lambda event: event.at))


class Measuring:
    """The measurements of a service's epochs. ``root`` is the graph with the service's own stages, by ``appended``."""

    def __init__(self, plan: Plan, branches: tuple[DataPipe, ...], root: DataPipe, appended: tuple[str, ...]) -> None:
        self._rows = rows_of_plan(plan, appended)
        self._plan, self._branches, self._root = plan, branches, root
        self._numbers: dict[Section, dict[int, int]] = {}
        self._shards: list[tuple[Shard, NodeSheet]] = []
        self._dispatching: list[tuple[Shard, NodeSheet]] = []
        self._main: tuple[ThreadTracing, NodeSheet] | None = None

    def begin_epoch(self) -> None:
        """Forget the epoch before."""
        self._shards, self._dispatching, self._main = [], [], None

    def trace_main(self) -> ThreadTracing:
        """For the nodes after the merge."""
        sheet = NodeSheet.local(len(self._numbers_of("main")))
        self._main = (ThreadTracing(sheet), sheet)
        return self._main[0]

    def trace_shard(self, *, dispatching: bool = False) -> Tracing:
        """For a shard that is produced here; :meth:`follow` says which one."""
        return Tracing(NodeSheet.local(len(self._numbers_of("dispatch" if dispatching else "shard"))))

    def follow(self, shard: Shard, *, dispatching: bool = False) -> None:
        if isinstance(trace := shard.host.trace, Tracing):
            (self._dispatching if dispatching else self._shards).append((shard, trace.sheet))

    def rows(self, elsewhere: Mapping[Section, Sequence[Made]]) -> tuple[NodeStats, ...]:
        """All nodes, with figures where there are any. ``elsewhere``: what other processes have noted."""
        found: list[NodeStats] = []
        undivided = not self._plan.sharding_points  # another shard would do, and have, all of it again
        for section in ("dispatch", "shard", "main"):
            rows = [
                NodeStats(
                    number=row.number,
                    name=row.name,
                    section=section,
                    inputs=row.inputs,
                    repeated=row.repeated or (undivided and section == "shard"),
                    divided_by=row.divided_by,
                )
                for row in self._rows
                if row.section == section
            ]
            made = [*self._here(section), *elsewhere.get(section, ())]
            found += with_figures(rows, self._numbers_of(section), self._last(section), made) if made else rows
        return tuple(found)

    def _here(self, section: Section) -> list[Made]:
        if section == "main":
            if self._main is None:
                return []
            tracing, sheet = self._main
            return [Made(sheet.read(), 0, busy=True, whole=tracing.wanted)]
        followed = self._shards if section == "shard" else self._dispatching
        return [Made(sheet.read(), shard.made, busy=True) for shard, sheet in followed]

    def _last(self, section: Section) -> set[int]:
        """The rows whose items leave the section."""
        plan = self._plan
        ends: tuple[Any, ...] = {"main": (plan.root,), "shard": plan.cuts, "dispatch": (plan.dispatch,)}[section]
        return {row.number for row in self._rows if any(row.node is end for end in ends)}

    def _numbers_of(self, section: Section) -> dict[int, int]:
        """The numbers of a section's rows, by the numbers that a process that runs it has for its nodes."""
        if section not in self._numbers:
            self._numbers[section] = self._find_numbers(section)
        return self._numbers[section]

    def _find_numbers(self, section: Section) -> dict[int, int]:
        rows = [row for row in self._rows if row.section == section and row.node is not None]
        if section == "main":
            numbers = GraphIndex.of(self._root).numbers
        elif section == "dispatch":
            numbers = {} if self._plan.dispatch is None else GraphIndex.of(self._plan.dispatch).numbers
        else:
            numbers = GraphIndex.of(*self._branches).numbers
            nodes = {id(node): node for branch in self._branches for node in walk(branch)}.values()
            stand_ins = [node for node in nodes if not isinstance(node, Dispatched)]
            # In the order of the graph, as the rows are: what reads from the dispatcher was copied
            rows = [replace(row, node=node) for row, node in zip(rows, stand_ins)]
        found = {numbers[id(row.node)]: row.number for row in rows if id(row.node) in numbers}
        return {index: found.get(index, 0) for index in range(max(found, default=-1) + 1)}
