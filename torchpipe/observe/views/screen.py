"""The place of a live table: the last rows of a terminal, an output of a notebook, or lines of a log.

On a terminal the rows above are made the ones that scroll, as package managers do for their progress: whatever the
program, its libraries and its worker processes write, by whatever way, goes on there, untouched. Runs in one thread at
a time, which the watcher sees to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

__all__ = ["Lines", "Notebook", "Screen", "Terminal", "screen_here"]

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
