"""The nodes that a service measures in this process, and the notes of all processes, as rows of a plan.

Runs in the user's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchpipe.execution.dispatch import Dispatched
from torchpipe.execution.node_figures import Made, with_figures
from torchpipe.execution.shard import Shard
from torchpipe.graph.plan import Plan
from torchpipe.graph.rows import rows_of
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.traits import DataPipe, walk
from torchpipe.stats.model import NodeStats
from torchpipe.stats.model import Section
from torchpipe.stats.node_sheet import NodeSheet
from torchpipe.stats.tracing import ThreadTracing, Tracing

__all__ = ["Measuring"]


class Measuring:
    """The measurements of a service's epochs. ``root`` is the graph with the service's own stages, by ``appended``."""

    def __init__(self, plan: Plan, branches: tuple[DataPipe, ...], root: DataPipe, appended: tuple[str, ...]) -> None:
        self._rows = rows_of(plan, appended)
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
        if isinstance(shard.trace, Tracing):
            (self._dispatching if dispatching else self._shards).append((shard, shard.trace.sheet))

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
