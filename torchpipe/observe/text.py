"""Figures as text, for ``print(loader.stats())``: the sentence, then a row for each node and each process. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from torchpipe.machine import format_bytes
from torchpipe.stats.model import BalanceStats, LoaderStats, ProcessStats

__all__ = [
    "as_text",
    "format_count",
    "format_seconds",
    "format_table",
    "node_rows",
    "own_shares",
    "plain",
    "process_rows",
    "spent_s",
]

_DASH = "-"
_LONGEST = 200  # characters of an event


def as_text(stats: LoaderStats) -> str:
    """The advice in its first line."""
    advice = stats.advice
    parts = [plain(" ".join(part for part in (advice.sentence, advice.change) if part)), _loop(stats)]
    if stats.balance is not None and stats.balance.steps:
        parts.append(_balance(stats.balance))
    if stats.nodes:
        parts.append(_table_of(node_rows(stats)))
    if len(stats.processes) > 1:
        parts.append(_table_of(process_rows(stats)))
    if stats.events:
        parts.append(_events(stats))
    if advice.predictions:
        foretold = (f"{item.workers}: {format_count(item.items_per_s)}/s" for item in advice.predictions)
        parts.append("items/s with so many workers, as predicted: " + ", ".join(foretold))
    return "\n\n".join(parts)


def _table_of(rows: list[dict[str, str]]) -> str:
    return format_table([[*rows[0]], *([*row.values()] for row in rows)])


def _events(stats: LoaderStats) -> str:
    """The number of events of each kind, and the last one."""
    counts: dict[str, int] = {}
    for event in stats.events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    counted = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items())
    last = stats.events[-1]
    text = last.text if len(last.text) <= _LONGEST else last.text[: _LONGEST - 3] + "..."
    return f"events: {counted}; the last, of {last.process}: {plain(text)}"


def _loop(stats: LoaderStats) -> str:
    consumer = stats.consumer
    of = "" if stats.total is None else f" of {stats.total}"
    line = f"epoch {stats.epoch}: {stats.delivered}{of} items delivered"
    if consumer.start_s is None:
        return line
    line += f", {format_count(consumer.items_per_s)}/s; the first after {format_seconds(consumer.start_s)}"
    if stats.workers:
        line += f"; {stats.workers} {'threads' if stats.method == 'thread' else 'workers'} ({stats.method})"
    return line + (f"; {stats.restarts} restarts" if stats.restarts else "")


def _balance(balance: BalanceStats) -> str:
    planned = "a plan would give" if balance.shadow else "planned"
    return (
        f"slowest rank over the mean, by costs, in {balance.steps} steps: {balance.slowest_without:.3f} in turn, "
        f"{balance.slowest:.3f} {planned}"
    )


def own_shares(stats: LoaderStats) -> dict[int, float]:
    """By number, each node's part of the time that all nodes took, 0 to 1; empty unless all are measured.

    Stages do not count: they move batches in threads of their own, beside the others.
    """
    stages = {stage.node for stage in stats.stages}
    own_s = {node.number: node.self_s for node in stats.nodes if node.number not in stages}
    measured_s = {number: self_s for number, self_s in own_s.items() if self_s is not None}
    whole_s = sum(measured_s.values())
    if not whole_s or len(measured_s) < len(own_s):  # of some, no part of the whole can be told
        return {}
    return {number: self_s / whole_s for number, self_s in measured_s.items()}


def spent_s(process: ProcessStats) -> dict[str, float]:
    """Seconds, by what the process did in them, in the words of every view and export."""
    return {
        "making": process.making_s,
        "sending": process.sending_s,
        "waits for the loop": process.credit_wait_s,
        "waits for input": process.input_wait_s,
    }


def node_rows(stats: LoaderStats) -> list[dict[str, str]]:
    """The figures of each node, by the heads of a table's columns; ``-`` where something is not known."""
    elapsed_s, shares = stats.consumer.elapsed_s, own_shares(stats)
    return [
        {
            "": str(node.number),
            "node": plain(node.name),
            "where": node.section,
            "items": _DASH if node.items is None else ("" if node.exact else "~") + format_count(node.items),
            "items/s": _DASH if node.items is None or not elapsed_s else format_count(node.items / elapsed_s),
            "own time": f"{100 * shares[node.number]:.0f} %" if node.number in shares else _DASH,
            "mean": format_seconds(node.mean_s),
            "p90": format_seconds(node.p90_s),
            "p99": format_seconds(node.p99_s),
            "bytes": _DASH if node.bytes is None else format_bytes(node.bytes),
            "errors": str(node.errors or _DASH),
            "skipped": str(node.skipped or _DASH),
        }
        for node in stats.nodes
    ]


def process_rows(stats: LoaderStats) -> list[dict[str, str]]:
    """The same of each process."""
    rows = []
    for process in stats.processes:
        spent = spent_s(process).values()
        whole = sum(spent)
        parts = (f"{100 * part / whole:.0f} %" if whole else _DASH for part in spent)
        rows.append(
            {
                "process": plain(process.name),
                "pid": str(process.pid),
                "is": process.doing,
                **dict(zip(("making", "sending", "waits: loop", "input"), parts)),
                "CPU": format_seconds(process.cpu_s),
                "memory": _DASH if process.memory_bytes is None else format_bytes(process.memory_bytes),
                "items": format_count(process.items),
                "sent": format_bytes(process.bytes) if process.bytes else _DASH,
                "restarts": str(process.restarts or _DASH),
            }
        )
    return rows


def plain(text: str) -> str:
    """Without characters that would command a terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the first two to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < 3 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def format_seconds(value: float | None) -> str:
    """With three digits, in the unit that fits."""
    if value is None:
        return _DASH
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}" if value * factor < 1000 else f"{value * factor:,.0f} {unit}"
    return f"{value * 1e9:.0f} ns"


def format_count(value: float) -> str:
    """With three digits; from 10,000 on in thousands or millions."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * factor or (factor == 1e6 and value >= factor):
            return f"{value / factor:.3g}{unit}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
