"""Figures as text, for ``print(loader.stats())``: the sentence, then a row for each node and each process. Pure.

Figures and findings as plain values and as JSON, there and back: frozen dataclasses that hold nothing else. Pure.

The sources of all that observes: a loader's figures, and each of its events once. Runs in the user's process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from types import UnionType
from typing import Any, Protocol, Self, Union, get_args, get_origin, get_type_hints

from torchpipe.machine import format_bytes
from torchpipe.stats.model import BalanceStats, Event, LoaderStats, ProcessStats

__all__ = [
    "FigureSource",
    "NewEvents",
    "PlainData",
    "as_text",
    "check_seconds",
    "format_count",
    "format_seconds",
    "format_table",
    "node_rows",
    "own_shares",
    "plain",
    "process_rows",
    "spent_s",
    "stats_from_json",
    "stats_to_dict",
    "stats_to_json",
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


class PlainData:
    """To plain values and back."""

    def to_dict(self) -> dict[str, Any]:
        """Dicts, lists and plain values: what JSON has."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The object that :meth:`to_json` gave. Raises: TypeError or KeyError if ``text`` is something else."""
        return _read(cls, json.loads(text))  # type: ignore[no-any-return]


def stats_to_dict(stats: LoaderStats) -> dict[str, Any]:
    """The advice and the figures of a loader."""
    return {"advice": stats.advice.to_dict(), **asdict(stats)}


def stats_to_json(stats: LoaderStats, indent: int | None = None) -> str:
    return json.dumps(stats_to_dict(stats), indent=indent)


def stats_from_json(text: str) -> LoaderStats:
    """The figures in ``text``, without a later version's fields. Raises: TypeError or KeyError for something else."""
    return _read(LoaderStats, json.loads(text))  # type: ignore[no-any-return]


def _read(kind: Any, value: Any) -> Any:
    """``value``, out of JSON, as a ``kind``."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return None if value is None else _read(next(item for item in get_args(kind) if item is not type(None)), value)
    if origin is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = {item.name for item in fields(kind)}
        return kind(**{name: _read(hints[name], item) for name, item in value.items() if name in names})  # type: ignore[operator]
    return value


class FigureSource(Protocol):
    """A loader, or what knows its figures."""

    def stats(self) -> LoaderStats: ...


class NewEvents:
    """Each event once. The first call of :meth:`of` returns all that there are."""

    def __init__(self) -> None:
        self._seen: frozenset[Event] = frozenset()

    def of(self, stats: LoaderStats) -> list[Event]:
        """The events of ``stats`` that earlier figures did not have. One that a log has forgotten stays away."""
        new = [event for event in stats.events if event not in self._seen]
        self._seen = frozenset(stats.events)
        return new


def check_seconds(every_s: float) -> None:
    """Raises: TypeError, ValueError for what is no time between two looks."""
    if isinstance(every_s, bool) or not isinstance(every_s, int | float):
        raise TypeError(f"every_s must be a number of seconds, got {every_s!r}")
    if not 0.001 <= every_s <= 3600:
        raise ValueError(f"every_s must be 0.001 to 3600 seconds, got {every_s!r}")
