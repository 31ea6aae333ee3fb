"""Pictures of graphs and plans.

A graph as text in DOT, the language of Graphviz. Pure functions.

A plan as text, for ``loader.explain()``: which node runs where.

A plan as rows, one a node, with the numbers that ``loader.explain()`` and ``loader.stats()`` have for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchpipe.graph.plan import Plan
from torchpipe.node.traits import DataPipe, Division, division, inputs_of, node_name, reads_late, traits_of, walk

__all__ = ["Row", "draw", "read_by_every_shard", "rows_of_plan", "to_dot"]


def to_dot(datapipe: DataPipe, *, debug: bool = False) -> str:
    """The graph that ends in ``datapipe``, as text for ``dot``: sources blue, the last node green.

    The branches of ``fork`` and the like are left out, and their readers read the fork, unless ``debug``.
    """
    nodes = walk(datapipe)
    branches = {} if debug else {id(node): _shared_input(node) for node in nodes if _shared_input(node) is not None}
    numbers = {id(node): number for number, node in enumerate(node for node in nodes if id(node) not in branches)}
    read = {id(item) for node in nodes for item in inputs_of(node)}
    lines = ["digraph {", "  node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10]"]
    for node in nodes:
        if id(node) in numbers:
            color = "lightblue" if not inputs_of(node) else "darkolivegreen1" if id(node) not in read else ""
            label = node_name(node).lstrip("_").replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {numbers[id(node)]} [label="{label}"{f", fillcolor={color}" if color else ""}]')
    for node in nodes:
        if id(node) in numbers:
            for item in inputs_of(node):
                source = branches.get(id(item)) or item
                lines.append(f"  {numbers[id(source)]} -> {numbers[id(node)]}")
    return "\n".join([*lines, "}"])


def _shared_input(node: DataPipe) -> DataPipe | None:
    """The node that ``node`` is a branch of, if it is one."""
    inputs = inputs_of(node)
    return inputs[0] if len(inputs) == 1 and traits_of(inputs[0]).shared else None


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


def rows_of_plan(plan: Plan, appended: tuple[str, ...] = ()) -> list[Row]:
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


_MARKS = {
    Division.NONE: "",
    Division.RANKS: "  [divides the stream between the ranks]",
    Division.SHARDS: "  [divides the stream between the shards of a rank]",
    Division.BOTH: "  [divides the stream between the shards]",
}
_REPEATED = "  [every shard does all of this]"
_READ = "  [every shard reads all of this: .{} behind it, and no sharding_filter, lets each read its own part]"


def draw(
    plan: Plan,
    shard_section: str,
    main_section: str,
    appended: tuple[str, ...] = (),
    dispatch_section: str = "in this process, once for all shards",
) -> str:
    """The sections one below the other, one line a node with the numbers of its inputs.

    A node before a sharding point is marked if every shard makes all its items, of which it then keeps some, or reads
    all files.
    ``shard_section`` and ``main_section`` say who runs them; ``appended`` names stages that a reading service adds.
    """
    rows = rows_of_plan(plan, appended)
    numbers = {id(row.node): row.number for row in rows}
    lines = []
    if plan.dispatch is not None:
        lines.append(f"dispatch section: {dispatch_section}")
        lines.extend(_line(row) for row in rows if row.section == "dispatch")
    lines.append(f"shard section: {shard_section}")
    lines.extend(_line(row) for row in rows if row.section == "shard")
    lines.append(f"main section: {main_section}")
    for cut in plan.cuts:
        of = f" of {numbers[id(cut)]}" if len(plan.cuts) > 1 else ""
        lines.append(f"  merge{of}: one item from each shard in turn")
    lines.extend(_line(row) for row in rows if row.section == "main")
    return "\n".join(lines)


def _line(row: Row) -> str:
    if row.node is None:
        return f"  {row.name} (added by the reading service)"
    source = f"  <- {', '.join(map(str, row.inputs))}" if row.inputs else ""
    repeated = _READ.format(f"{row.divided_by}()") if row.divided_by else _REPEATED if row.repeated else ""
    shown = traits_of(row.node).explained(row.node)  # type: ignore[arg-type]
    shown = f"  [{shown}]" if shown else ""
    return f"  {row.number:>3} {row.name}{source}{_MARKS[division(row.node)]}{shown}{repeated}"
