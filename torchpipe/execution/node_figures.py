"""From what processes have noted of their nodes to a row for each. Pure.

Where all items were timed, the figures are exact. Where timing was given up, since items are quick, what was timed
speaks for the rest: it is scaled by (items produced) / (items timed) of the last node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torchpipe.stats.model import NodeStats
from torchpipe.stats.sheet import BYTES, ERRORS, ITEMS, SELF_NS, SIZED, SKIPPED, Figures

__all__ = ["Made", "with_figures"]


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
