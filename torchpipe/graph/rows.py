"""A plan as rows, one a node, with the numbers that ``loader.explain()`` and ``loader.stats()`` have for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchpipe.graph.plan import Plan
from torchpipe.node.traits import DataPipe, inputs_of, node_name, reads_late, traits_of, walk

__all__ = ["Row", "rows_of"]


@dataclass(frozen=True)
class Row:
    """``repeated``: every shard makes all its items, of which it keeps some. ``node`` None: added by a service."""

    number: int
    name: str
    section: Literal["dispatch", "shard", "main"]
    inputs: tuple[int, ...]
    repeated: bool
    node: DataPipe | None


def rows_of(plan: Plan, appended: tuple[str, ...] = ()) -> list[Row]:
    """All nodes, inputs first, in the order of the sections; ``appended`` names stages that a reading service adds."""
    numbers: dict[int, int] = {}
    repeated = _done_by_every_shard(plan)
    rows: list[Row] = []
    sections: tuple[tuple[Literal["dispatch", "shard", "main"], tuple[DataPipe, ...]], ...] = (
        ("dispatch", plan.dispatch_nodes),
        ("shard", plan.shard_nodes),
        ("main", plan.main_nodes),
    )
    for section, nodes in sections:
        for node in nodes:
            number = numbers.setdefault(id(node), len(numbers) + 1)
            inputs = tuple(numbers[id(item)] for item in inputs_of(node))
            rows.append(Row(number, node_name(node), section, inputs, id(node) in repeated, node))
    before = numbers[id(plan.root)]
    for number, name in enumerate(appended, len(numbers) + 1):
        rows.append(Row(number, name, "main", (before,), False, None))
        before = number
    return rows


def _done_by_every_shard(plan: Plan) -> set[int]:
    """The ids of the nodes of the shard section that run, for every item, before a sharding point."""
    leaving_out = [point for point in plan.sharding_points if not traits_of(point).one_to_one]
    before = {id(node) for point in leaving_out for item in inputs_of(point) for node in walk(item)}
    return {id(node) for node in plan.shard_nodes if id(node) in before and not reads_late(node)}
