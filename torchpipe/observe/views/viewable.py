"""What every loader has to be looked at: pictures, pages, live tables, traces. Runs in the user's process.

What draws is imported when it is asked for: a worker that is not forked imports what the user's program does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from torchpipe.stats import LoaderStats

if TYPE_CHECKING:
    from torchpipe.observe.views.lanes import Trace
    from torchpipe.observe.views.watching import Watch

__all__ = ["GraphFormat", "Viewable", "watched"]

T = TypeVar("T")

GraphFormat: TypeAlias = Literal["text", "svg", "mermaid"]

# Of each loader, and of the process that asked: not in the loader, whose copies and pickles have none.
_last_looks: weakref.WeakKeyDictionary[Viewable, list[tuple[int, Any]]] = weakref.WeakKeyDictionary()


class Viewable:
    """Mixed into the loaders. All of it draws from :meth:`stats`, asks no process and changes nothing in the stream."""

    measuring: bool

    def stats(self) -> LoaderStats:
        """What the loader is doing."""
        raise NotImplementedError

    def look_last(self, look: weakref.WeakMethod[Callable[[], object]]) -> None:
        """Call ``look``, as long as it is there, at each ``iter()``, when the figures are those of the epoch before."""
        _last_looks.setdefault(self, []).append((os.getpid(), look))

    def _take_last_looks(self) -> None:
        looks = _last_looks.get(self, [])
        for entry in list(looks):
            pid, look = entry
            if (call := look()) is None:
                looks.remove(entry)
            elif pid == os.getpid():  # in a forked child, a thread of the parent's may have left its lock closed
                call()

    def _explain(self) -> str:
        from torchpipe.observe.views.layout import graph_text

        return graph_text(self.stats())

    def explain(self, format: GraphFormat = "text") -> str:
        """Which node runs where, and what reads what.

        As ``"text"``; as ``"svg"``, a document of its own that shows processes as boxes, in the reader's theme, with
        what is known of their time just now; or as ``"mermaid"``, for a Markdown page.

        Raises: ValueError for another format.
        """
        if format == "text":
            return self._explain()
        if format == "svg":
            from torchpipe.observe.views.svg import graph_svg

            return graph_svg(self.stats())
        if format == "mermaid":
            from torchpipe.observe.views.layout import graph_mermaid

            return graph_mermaid(self.stats())
        raise ValueError(f'format must be "text", "svg" or "mermaid", got {format!r}')

    def watch(self, every_s: float = 0.5) -> Watch:
        """Show live what the loader does: ``with loader.watch():``, or until ``close()`` of what this returns.

        On a terminal, the last rows hold a table (with rich installed), and all output of the program goes on above
        it; in a notebook, it is an output of the cell; elsewhere, and without rich, there is a line on stderr every ten
        seconds. Nodes are measured meanwhile, from the next ``iter()`` on. ``TORCHPIPE_WATCH=1`` in the environment
        watches every loader while it runs.

        Raises: RuntimeError in a worker process, and if this loader is being watched already; ValueError or TypeError
        unless ``every_s`` is a positive number of seconds.
        """
        from torchpipe.observe.views.watching import begin_watch

        _check_seconds(every_s)
        return begin_watch(self, every_s)

    def report(self, path: str | os.PathLike[str], *, title: str = "torchpipe") -> Path:
        """Write a page with all that is known of the live epoch, or the last one: returns its path.

        The advice, the graph with its processes, time by node, queues, the epoch over time with restarts and stalls,
        tables, predictions. One HTML file that refers to nothing elsewhere, in the reader's theme. ``measure=True``
        gives it figures of nodes.

        Raises: OSError, naming the path, if it cannot be written; then there is no file, or the one that was there.
        """
        from torchpipe.observe.views.report import write_report

        return write_report(self.stats(), path, title)

    def trace(self, path: str | os.PathLike[str], every_s: float = 0.02) -> Trace:
        """Write what every process is at, over time: ``with loader.trace("trace.json"):``, or until ``close()``.

        Perfetto and chrome://tracing open the file. It has a lane for the loop and each process, with what took most of
        every ``every_s`` seconds; the fill of queues; restarts and the like as marks. Timestamps are torch.profiler's,
        so its events can be put into the same file.

        Raises: OSError if the file cannot be written; ValueError or TypeError for ``every_s``.
        """
        from torchpipe.observe.views.lanes import Trace

        _check_seconds(every_s)
        return Trace(self, path, every_s)


def watched(loader: Any, iterator: T) -> T:
    """``iterator``, which ``loader`` has just begun: watched if the environment asks for that (``TORCHPIPE_WATCH=1``).

    Of several ranks on a machine, the first one's are.
    """
    if os.environ.get("TORCHPIPE_WATCH", "0") not in ("", "0") and os.environ.get("LOCAL_RANK", "0") == "0":
        from torchpipe.observe.views.watching import watch_while_it_runs

        watch_while_it_runs(loader, iterator)
    return iterator


def _check_seconds(every_s: float) -> None:
    if isinstance(every_s, bool) or not isinstance(every_s, int | float):
        raise TypeError(f"every_s must be a number of seconds, got {every_s!r}")
    if not 0.001 <= every_s <= 3600:
        raise ValueError(f"every_s must be 0.001 to 3600 seconds, got {every_s!r}")
