"""The place of a live table: the last rows of a terminal, an output of a notebook, or lines of a log.

On a terminal the rows above are made the ones that scroll, as package managers do for their progress: whatever the
program, its libraries and its worker processes write, by whatever way, goes on there, untouched. Runs in one thread at
a time, which the watcher sees to.

The present work of a loader, in a few lines: for a terminal, a notebook, and logs. Pure; drawn by ``rich``.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from torchpipe.observe.text import format_count, format_seconds, node_rows, plain, process_rows
from torchpipe.stats import LoaderStats

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

__all__ = ["Lines", "Notebook", "Pace", "Screen", "Terminal", "drawn", "page", "progress_line", "screen_here"]

_LEAST_ROWS = 8  # that are left to the program
_LINES_EVERY_S = 10.0


class Screen(Protocol):
    """``width`` columns, with characters of ``encoding``."""

    @property
    def width(self) -> int: ...

    @property
    def encoding(self) -> str: ...

    def show(self, lines: Sequence[str]) -> None:
        """In place of what was shown last."""

    def leave(self, lines: Sequence[str]) -> None:
        """For good, after all the output that has come so far."""

    def close(self) -> None:
        """Leave the place as it was. Idempotent."""


def screen_here() -> Screen:
    """The screen that there is to draw on."""
    if _in_notebook():
        return Notebook()
    for stream in (sys.stderr, sys.stdout):
        try:
            if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
                return Terminal(stream)
        except (AttributeError, ValueError):  # no stream at all, or a closed one
            pass
    return Lines()


class Terminal:
    """The last rows of ``stream``'s terminal. After SIGKILL they stay apart until the terminal is ``reset``."""

    every_s = 0.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._size = (0, 0)
        self._height = 0  # rows taken

    @property
    def width(self) -> int:
        return max(20, self._dimensions()[0] - 1)

    def _dimensions(self) -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):  # it is gone
            return self._size if self._height else (80, 24)
        return columns, rows

    def show(self, lines: Sequence[str]) -> None:
        columns, rows = self._dimensions()
        lines = lines[: max(0, rows - _LEAST_ROWS)]
        text = ""
        if (columns, rows) != self._size:
            text, self._size, self._height = self._freed(), (columns, rows), 0
        if (more := len(lines) - self._height) > 0:
            # Move what is there up, keep the column (it may be a line half written), then let only that part scroll.
            self._height = len(lines)
            text += "\x1bD" * more + f"\x1b[{more}A\x1b7\x1b[1;{rows - self._height}r\x1b8"
        top = rows - self._height + 1
        padded = [*lines, *[""] * (self._height - len(lines))]
        text += "\x1b7" + "".join(f"\x1b[{top + row};1H\x1b[2K{line}" for row, line in enumerate(padded)) + "\x1b8"
        self._write(text)

    def _freed(self) -> str:
        """Clears the rows, and lets the whole screen scroll again."""
        if not self._height:
            return ""
        top = self._size[1] - self._height + 1
        return "\x1b7" + "".join(f"\x1b[{top + row};1H\x1b[2K" for row in range(self._height)) + "\x1b[r\x1b8"

    def leave(self, lines: Sequence[str]) -> None:
        columns, _ = self._dimensions()
        # So many blanks go over into the next line, unless the cursor stands at the begin of one.
        self._write(" " * (columns - 1) + "\r\x1b[K" + "".join(f"{line}\x1b[0m\r\n" for line in lines))

    def close(self) -> None:
        text, self._height = self._freed(), 0
        if text:
            self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream closed
            self._height = 0

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"


class Notebook:
    """One output of the cell that runs, updated in place."""

    width = 100
    encoding = "utf-8"

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, lines: Sequence[str]) -> None:
        """``lines`` are HTML."""
        from IPython.display import HTML, display

        html = HTML("".join(lines))
        if self._handle is None:
            self._handle = display(html, display_id=True)
        else:
            self._handle.update(html)

    def leave(self, lines: Sequence[str]) -> None:
        if self._handle is not None:
            self.show(lines)

    def close(self) -> None:
        self._handle = None


class Lines:
    """Lines on stderr, every ten seconds and at the end."""

    width = 0
    encoding = "utf-8"

    def __init__(self) -> None:
        self._next = time.monotonic() + _LINES_EVERY_S

    def show(self, lines: Sequence[str]) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINES_EVERY_S
            self.leave(lines)

    def leave(self, lines: Sequence[str]) -> None:
        try:
            text = "".join(f"torchpipe: {line}\n" for line in lines)
            encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
            sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding))
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):  # there is no stderr (any more)
            pass

    def close(self) -> None:
        return


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    instance = None if shell is None else shell.get_ipython()
    return instance is not None and hasattr(instance, "kernel")


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
