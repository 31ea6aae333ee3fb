"""A plan as text, for ``loader.explain()``: which node runs where."""

from __future__ import annotations

from torchpipe.graph.plan import Plan
from torchpipe.graph.rows import Row, rows_of
from torchpipe.node.traits import Division, division, traits_of

__all__ = ["draw"]

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
    rows = rows_of(plan, appended)
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
