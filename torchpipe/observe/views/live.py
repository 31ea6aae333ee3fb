"""The present work of a loader, in a few lines: for a terminal, a notebook, and logs. Pure; drawn by ``rich``."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchpipe.observe.text import format_count, format_seconds, node_rows, plain, process_rows
from torchpipe.stats import LoaderStats

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

__all__ = ["Pace", "drawn", "page", "progress_line"]

_MOST_ROWS = 6
_BACK_S = 20.0  # the rate is that of so long


class Pace:
    """Items a second of late, from what it is shown now and then."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def rate(self, stats: LoaderStats, now: float) -> float:
        """``now``: seconds on any clock that goes on evenly."""
        seen = self._seen
        if seen and (seen[-1][1] != stats.epoch or seen[-1][2] > stats.delivered):
            seen.clear()
        seen.append((now, stats.epoch, stats.delivered))
        while len(seen) > 2 and seen[1][0] < now - _BACK_S:
            seen.popleft()
        (began, _, before), (ended, _, after) = seen[0], seen[-1]
        lately = (after - before) / (ended - began) if ended > began else 0.0
        return lately if stats.state == "running" and lately else stats.consumer.items_per_s


def _progress(stats: LoaderStats, rate: float) -> list[str]:
    of = "" if stats.total is None else f" of {stats.total:,} ({100 * stats.delivered / max(1, stats.total):.0f} %)"
    parts = [f"epoch {stats.epoch}", f"{stats.delivered:,}{of} items", f"{format_count(rate)}/s"]
    if stats.state != "running":
        parts.append("ended" if stats.state == "finished" else "not begun" if stats.state == "new" else "stopped")
    elif stats.total is not None and rate:
        parts.append(f"{format_seconds(max(0, stats.total - stats.delivered) / rate)} left")
    if stats.restarts:
        parts.append(f"{stats.restarts} restart{'s' if stats.restarts > 1 else ''}")
    return parts


def progress_line(stats: LoaderStats, rate: float) -> str:
    """One line, for logs."""
    return f"{', '.join(_progress(stats, rate))}. {plain(stats.advice.sentence)}"


class _Paper(io.StringIO):
    """A file that rich takes for a terminal of this encoding: bars are of ASCII where it has no other characters."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def drawn(stats: LoaderStats, rate: float, width: int, *, color: bool = True, encoding: str = "utf-8") -> list[str]:
    """Lines of at most ``width`` columns, with their colours. Raises: ImportError without rich."""
    from rich.console import Console

    # Colours of the terminal's own theme; what the environment says (NO_COLOR) is heeded.
    paper = _Paper(encoding)
    console = Console(file=paper, force_terminal=color, width=width, color_system="standard" if color else None)
    with console.capture() as captured:
        console.print(_table(stats, rate, width), end="")
    return captured.get().rstrip("\n").split("\n")


def page(stats: LoaderStats, rate: float) -> str:
    """The same as HTML, for a notebook."""
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=100, force_jupyter=False)
    console.print(_table(stats, rate, 100))
    style = "line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace;color:inherit"
    return str(console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'))


def _table(stats: LoaderStats, rate: float, width: int) -> Group:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    first = Table.grid(padding=(0, 1), expand=False)
    text = Text(" | ".join(_progress(stats, rate)), no_wrap=True, overflow="ellipsis")
    bar_width = max(10, min(30, width - len(text) - 2))
    if stats.total and width > 60:
        first.add_row(ProgressBar(total=stats.total, completed=stats.delivered, width=bar_width), text)
    else:
        first.add_row(text)
    held = stats.advice.bottleneck not in ("nothing", "consumer")
    advice = plain(" ".join(part for part in (stats.advice.sentence, stats.advice.change) if part))
    sentence = Text(advice, style="yellow" if held else "green", no_wrap=True, overflow="ellipsis")
    rows = _nodes(stats) if any(node.self_s for node in stats.nodes) else _processes(stats)
    parts: list[Any] = [first, sentence, rows]
    if stats.events:
        event = stats.events[-1]
        parts.append(Text(plain(f"{event.kind}: {event.text}"), style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _grid(rows: list[dict[str, str]], columns: Sequence[str], styles: Sequence[str] = ()) -> Table:
    """These columns of the first rows, of which some have a style."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True, overflow="ellipsis")
    for number, row in enumerate(rows[:_MOST_ROWS]):
        table.add_row(*(escape(row[column]) for column in columns), style=styles[number] if styles else "")
    return table


def _nodes(stats: LoaderStats) -> Table:
    """The slowest nodes, in the order of the graph."""
    slowest = {node.number for node in sorted(stats.nodes, key=lambda node: -(node.self_s or 0.0))[:_MOST_ROWS]}
    shown = [(node, row) for node, row in zip(stats.nodes, node_rows(stats)) if node.number in slowest]
    styles: list[str] = ["bold" if node.number == stats.advice.node else "" for node, _ in shown]
    return _grid([row for _, row in shown], ("node", "where", "items", "own time", "mean", "p99", "errors"), styles)


def _processes(stats: LoaderStats) -> Table:
    return _grid(process_rows(stats), ("process", "is", "making", "sending", "waits: loop", "input", "memory"))
