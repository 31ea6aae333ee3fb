"""A plan as text, for ``loader.explain()``: which node runs where. Imports ``nodes`` and ``plan``."""

from __future__ import annotations

from torchpipe.graph.plan import Plan
from torchpipe.nodes import DataPipe, Division, division, inputs_of, node_name

__all__ = ["draw"]

_MARKS = {
    Division.NONE: "",
    Division.RANKS: "  [divides the stream between the ranks]",
    Division.SHARDS: "  [divides the stream between the shards of a rank]",
    Division.BOTH: "  [divides the stream between the shards]",
}


def draw(
    plan: Plan,
    shard_section: str,
    main_section: str,
    appended: tuple[str, ...] = (),
    dispatch_section: str = "in this process, once for all shards",
) -> str:
    """The sections one below the other, one line a node with the numbers of its inputs.

    ``shard_section`` and ``main_section`` say who runs them; ``appended`` names stages that a reading service adds.
    """
    numbers: dict[int, int] = {}
    lines = []
    if plan.dispatch is not None:
        lines.append(f"dispatch section: {dispatch_section}")
        lines.extend("  " + _line(node, numbers) for node in plan.dispatch_nodes)
    lines.append(f"shard section: {shard_section}")
    for node in plan.shard_nodes:
        lines.append("  " + _line(node, numbers))
    lines.append(f"main section: {main_section}")
    for cut in plan.cuts:
        of = f" of {numbers[id(cut)]}" if len(plan.cuts) > 1 else ""
        lines.append(f"  merge{of}: one item from each shard in turn")
    for node in plan.main_nodes:
        lines.append("  " + _line(node, numbers))
    lines.extend(f"  {name} (added by the reading service)" for name in appended)
    return "\n".join(lines)


def _line(node: DataPipe, numbers: dict[int, int]) -> str:
    numbers.setdefault(id(node), len(numbers) + 1)
    inputs = [str(numbers[id(item)]) for item in inputs_of(node)]
    source = f"  <- {', '.join(inputs)}" if inputs else ""
    return f"{numbers[id(node)]:>3} {node_name(node)}{source}{_MARKS[division(node)]}"
