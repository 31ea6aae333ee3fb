"""Figures as text, for ``print(loader.stats())``: the sentence, then a row for each node and each process. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchpipe.stats.model import LoaderStats, NodeStats, ProcessStats

__all__ = ["as_text", "format_bytes", "format_count", "format_seconds", "format_table", "plain"]

_DASH = "-"
_LONGEST = 200  # characters of an event


def as_text(stats: LoaderStats) -> str:
    """The advice in its first line."""
    advice = stats.advice
    parts = [plain(" ".join(part for part in (advice.sentence, advice.change) if part)), _loop(stats)]
    if stats.nodes:
        parts.append(format_table([_NODE_HEAD, *(_node(node, stats) for node in stats.nodes)]))
    if len(stats.processes) > 1:
        parts.append(format_table([_PROCESS_HEAD, *(_process(process) for process in stats.processes)]))
    if stats.events:
        parts.append(_events(stats))
    if advice.predictions:
        foretold = (f"{item.workers}: {format_count(item.items_per_s)}/s" for item in advice.predictions)
        parts.append("items/s with so many workers, as predicted: " + ", ".join(foretold))
    return "\n\n".join(parts)


def _events(stats: LoaderStats) -> str:
    """How many of each kind, and the last one."""
    counts: dict[str, int] = {}
    for event in stats.events:
        counts[event.kind] = counts.get(event.kind, 0) + 1
    said = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items())
    last = stats.events[-1]
    text = last.text if len(last.text) <= _LONGEST else last.text[: _LONGEST - 3] + "..."
    return f"events: {said}; the last, of {last.process}: {plain(text)}"


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


_NODE_HEAD = ("", "node", "where", "items", "items/s", "own time", "mean", "p90", "p99", "bytes", "errors", "skipped")


def _node(node: NodeStats, stats: LoaderStats) -> Sequence[str]:
    elapsed_s = stats.consumer.elapsed_s
    rate = None if node.items is None or not elapsed_s else node.items / elapsed_s
    known = [other.self_s for other in stats.nodes if other.self_s is not None]
    whole_s = sum(known) if len(known) == len(stats.nodes) else 0.0  # of some, no part of the whole can be told
    share = f"{100 * node.self_s / whole_s:.0f} %" if node.self_s is not None and whole_s else _DASH
    about = "" if node.exact else "~"
    times = (format_seconds(value) for value in (node.mean_s, node.p90_s, node.p99_s))
    items = _DASH if node.items is None else about + format_count(node.items)
    return (
        str(node.number),
        plain(node.name),
        node.section,
        items,
        _DASH if rate is None else format_count(rate),
        share,
        *times,
        _DASH if node.bytes is None else format_bytes(node.bytes),
        str(node.errors) if node.errors else _DASH,
        str(node.skipped) if node.skipped else _DASH,
    )


_PROCESS_HEAD = (
    "process", "pid", "is", "making", "sending", "waits: consumer", "input", "CPU", "memory", "sent", "restarts"
)  # fmt: skip


def _process(process: ProcessStats) -> Sequence[str]:
    times = (process.making_s, process.sending_s, process.credit_wait_s, process.input_wait_s)
    whole = sum(times)
    return (
        process.name,
        str(process.pid),
        process.doing,
        *(f"{100 * time_s / whole:.0f} %" if whole else _DASH for time_s in times),
        format_seconds(process.cpu_s),
        _DASH if process.memory_bytes is None else format_bytes(process.memory_bytes),
        format_bytes(process.bytes) if process.bytes else _DASH,
        str(process.restarts) if process.restarts else _DASH,
    )


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


def format_bytes(value: float) -> str:
    """With three digits, in powers of 1000."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"
