"""A plan as text, for ``loader.explain()``: which node runs where."""

from __future__ import annotations

from torchpipe.graph.plan import Plan
from torchpipe.node.traits import DataPipe, Division, division, inputs_of, node_name, reads_late, walk

__all__ = ["draw"]

_MARKS = {
    Division.NONE: "",
    Division.RANKS: "  [divides the stream between the ranks]",
    Division.SHARDS: "  [divides the stream between the shards of a rank]",
    Division.BOTH: "  [divides the stream between the shards]",
}
_REPEATED = "  [every shard does all of this]"


def draw(
    plan: Plan,
    shard_section: str,
    main_section: str,
    appended: tuple[str, ...] = (),
    dispatch_section: str = "in this process, once for all shards",
) -> str:
    """The sections one below the other, one line a node with the numbers of its inputs.

    A node before a sharding point is marked if every shard makes all its items, of which it then keeps some.
    ``shard_section`` and ``main_section`` say who runs them; ``appended`` names stages that a reading service adds.
    """
    numbers: dict[int, int] = {}
    lines = []
    if plan.dispatch is not None:
        lines.append(f"dispatch section: {dispatch_section}")
        lines.extend("  " + _line(node, numbers) for node in plan.dispatch_nodes)
    repeated = _done_by_every_shard(plan)
    lines.append(f"shard section: {shard_section}")
    for node in plan.shard_nodes:
        lines.append("  " + _line(node, numbers) + (_REPEATED if id(node) in repeated else ""))
    lines.append(f"main section: {main_section}")
    for cut in plan.cuts:
        of = f" of {numbers[id(cut)]}" if len(plan.cuts) > 1 else ""
        lines.append(f"  merge{of}: one item from each shard in turn")
    for node in plan.main_nodes:
        lines.append("  " + _line(node, numbers))
    lines.extend(f"  {name} (added by the reading service)" for name in appended)
    return "\n".join(lines)


def _done_by_every_shard(plan: Plan) -> set[int]:
    """The ids of the nodes of the shard section that run, for every item, before a sharding point."""
    before = {id(node) for point in plan.sharding_points for item in inputs_of(point) for node in walk(item)}
    return {id(node) for node in plan.shard_nodes if id(node) in before and not reads_late(node)}


def _line(node: DataPipe, numbers: dict[int, int]) -> str:
    numbers.setdefault(id(node), len(numbers) + 1)
    inputs = [str(numbers[id(item)]) for item in inputs_of(node)]
    source = f"  <- {', '.join(inputs)}" if inputs else ""
    return f"{numbers[id(node)]:>3} {node_name(node)}{source}{_MARKS[division(node)]}"
