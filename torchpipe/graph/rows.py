"""A plan as rows, one a node, with the numbers that ``loader.explain()`` and ``loader.stats()`` have for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchpipe.graph.plan import Plan
from torchpipe.node.traits import DataPipe, inputs_of, node_name, reads_late, traits_of, walk

__all__ = ["Row", "read_by_every_shard", "rows_of"]


@dataclass(frozen=True)
class Row:
    """``repeated``: every shard makes all its items, of which it keeps some. ``divided_by``: every shard reads all that
    it reads, and this form behind it lets each read its own part. ``node`` None: added by a service.
    """

    number: int
    name: str
    section: Literal["dispatch", "shard", "main"]
    inputs: tuple[int, ...]
    repeated: bool
    node: DataPipe | None
    divided_by: str = ""


def rows_of(plan: Plan, appended: tuple[str, ...] = ()) -> list[Row]:
    """All nodes, inputs first, in the order of the sections; ``appended`` names stages that a reading service adds."""
    numbers: dict[int, int] = {}
    repeated = _done_by_every_shard(plan)
    read = {id(node): traits_of(node).divided_by for node, _ in read_by_every_shard(plan)}
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
            rows.append(
                Row(number, node_name(node), section, inputs, id(node) in repeated, node, read.get(id(node), ""))
            )
    before = numbers[id(plan.root)]
    for number, name in enumerate(appended, len(numbers) + 1):
        rows.append(Row(number, name, "main", (before,), False, None))
        before = number
    return rows


def _done_by_every_shard(plan: Plan) -> set[int]:
    """The ids of the nodes of the shard section that run, for every item, before a sharding point."""
    straight = {id(node) for node, is_straight in read_by_every_shard(plan) if is_straight}
    return {
        id(node) for node in _before_points(plan) if not (reads_late(node) or id(node) in straight)
    }  # what reads files makes only what is kept straight behind it


def read_by_every_shard(plan: Plan) -> list[tuple[DataPipe, bool]]:
    """The sources before a sharding point of which every shard reads all, though there is what would divide them; and
    if a point stands straight behind, with which a source makes only what is kept.
    """
    straight = {id(item) for point in _leaving_out(plan) for item in inputs_of(point)}
    return [(node, id(node) in straight) for node in _before_points(plan) if traits_of(node).divided_by]


def _leaving_out(plan: Plan) -> list[DataPipe]:
    return [point for point in plan.sharding_points if not traits_of(point).one_to_one]


def _before_points(plan: Plan) -> list[DataPipe]:
    before = {id(node) for point in _leaving_out(plan) for item in inputs_of(point) for node in walk(item)}
    return [node for node in plan.shard_nodes if id(node) in before]
