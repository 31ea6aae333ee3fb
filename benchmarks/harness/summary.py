"""From single results to medians with their spread. Runs in the runner."""

from __future__ import annotations

import statistics
from typing import Any

__all__ = ["BUSY", "summarise", "value"]

BUSY = 0.10  # above this share of the machine taken by others, a round counts only if there is no quieter one

_NOT_FIGURES = {"round", "closed"}


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each (workload, peer): ``figures`` maps names to median, min and max over the rounds that count.

    ``rounds`` counts those, ``busy_rounds`` those left out because other programs took too much of the machine;
    ``all_busy`` says that there was no quieter one, so that they count all the same.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["workload"], result["peer"]), []).append(result)
    return [_summary(workload, peer, group) for (workload, peer), group in groups.items()]


def _summary(workload: str, peer: str, group: list[dict[str, Any]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"workload": workload, "peer": peer}
    for reason in ("unsupported", "error"):
        failed = [result[reason] for result in group if reason in result]
        if failed:
            entry[reason] = failed[0]
    good = [result for result in group if "unsupported" not in result and "error" not in result]
    quiet = [result for result in good if result.get("others", 0.0) <= BUSY]
    counted = quiet or good
    entry.update(rounds=len(counted), busy_rounds=len(good) - len(counted), all_busy=not quiet, figures={})
    for name in counted[0] if counted else ():
        values = [result[name] for result in counted if _is_figure(name, result.get(name))]
        if values:
            entry["figures"][name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return entry


def _is_figure(name: str, figure: Any) -> bool:
    return isinstance(figure, int | float) and not isinstance(figure, bool) and name not in _NOT_FIGURES


def value(summary: list[dict[str, Any]], workload: str, peer: str, name: str) -> float | None:
    """The median of one figure, or None."""
    for entry in summary:
        if entry["workload"] == workload and entry["peer"] == peer and name in entry["figures"]:
            median: float = entry["figures"][name]["median"]
            return median
    return None
