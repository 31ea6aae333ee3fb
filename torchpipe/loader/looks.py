"""The looks at a loader that each offers: its figures, and a line for each thing that the ring ``observe`` makes.

Runs in the user's process. The ring is imported when it is asked for: a worker that is not forked imports what the
user's program does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from torchpipe.loader.observing import HasFigures
from torchpipe.rings import from_ring, is_installed

__all__ = ["AskedSteps", "GraphFormat", "Looks", "watched"]

T = TypeVar("T")

GraphFormat: TypeAlias = Literal["text", "svg", "mermaid"]
AskedSteps: TypeAlias = int | Iterable[int] | None
"""One step, several, or all of the epoch. Steps count from 0 at the beginning of the epoch."""

# Of each loader, and of the process that asked: not in the loader, whose copies and pickles have none.
_last_looks: weakref.WeakKeyDictionary[Looks, list[tuple[int, Any]]] = weakref.WeakKeyDictionary()


class Looks(HasFigures):
    """Mixed into the loaders. All of it asks no process and changes nothing in the stream."""

    measuring: bool

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

    def explain(self, format: GraphFormat = "text") -> str:
        """The graph: the process of each node, and its inputs.

        As ``"text"``; as ``"svg"``, a document of its own that shows processes as boxes, in the reader's theme, with
        the figures of their time just now; or as ``"mermaid"``, for a Markdown page.

        Raises: ValueError for another format.
        """
        return self._explain() if format == "text" else self._drawn(format)

    def _explain(self) -> str:
        return self._drawn("text")

    def _drawn(self, format: str) -> str:
        return from_ring("torchpipe.observe.views.svg:graph_as")(self.stats(), format)  # type: ignore[no-any-return]

    def watch(self, every_s: float = 0.5) -> Any:
        """Show live what the loader does: ``with loader.watch():``, or until ``close()`` of what this returns.

        On a terminal, the last rows hold a table (with rich installed), and all output of the program goes on above
        it; in a notebook, it is an output of the cell; elsewhere, and without rich, there is a line on stderr every ten
        seconds. Nodes are measured meanwhile, from the next ``iter()`` on. ``TORCHPIPE_WATCH=1`` in the environment
        watches every loader while it runs.

        Raises: RuntimeError in a worker process, and if this loader is being watched already; ValueError or TypeError
        unless ``every_s`` is a positive number of seconds.
        """
        return from_ring("torchpipe.observe.views.watching:begin_watch")(self, every_s)

    def report(self, path: str | os.PathLike[str], *, title: str = "torchpipe") -> Path:
        """Write a page with all that is known of the live epoch, or the last one: returns its path.

        The advice, the graph with its processes, time by node, queues, the epoch over time with restarts and stalls,
        tables, predictions. One HTML file that refers to nothing elsewhere, in the reader's theme.
        ``loader.measuring = True`` gives it figures of nodes.

        Raises: OSError, naming the path, if it cannot be written; then there is no file, or the one that was there.
        """
        return from_ring("torchpipe.observe.views.report:write_report")(self.stats(), path, title)  # type: ignore[no-any-return]

    def trace(self, path: str | os.PathLike[str], every_s: float = 0.02) -> Any:
        """Write what every process is at, over time: ``with loader.trace("trace.json"):``, or until ``close()``.

        Perfetto and chrome://tracing open the file. It has a lane for the loop and each process, with what took most of
        every ``every_s`` seconds; the fill of queues; restarts and the like as marks. Timestamps are torch.profiler's,
        so its events can be put into the same file.

        Raises: OSError if the file cannot be written; ValueError or TypeError for ``every_s``.
        """
        return from_ring("torchpipe.observe.views.lanes:Trace")(self, path, every_s)

    def rows(self, steps: AskedSteps = None, *, keep: Sequence[str] = (), epoch: int | None = None) -> Any:
        """The samples of the items of ``steps``, computed: the loader stays where it is, no rank is asked.

        Steps are items of this rank, and count from 0 at the beginning of the epoch: by default that of
        :meth:`state_dict`, or another ``epoch``. The result gives a :class:`~torchpipe.observe.StepRows` for
        each step.

        Of a graph, a row is what a source gives for a sample (a path, a record), or its index where the source is read
        by index; of dicts, the fields of ``keep``, or those that are named ``id``, ``index``, ``key``, ``path`` and the
        like. What functions make one item of one (``map``, ``collate``) is then not made. Where code of the user's
        decides which items come (``filter``), or nodes behind the workers do, all is made in this process, and thrown
        away: :attr:`Rows.makes <torchpipe.observe.Rows>` says so before it begins.

        Of a map-style dataset, rows are indices, as a copy of the sampler gives them, and nothing is read; ``keep`` has
        to be empty, and another ``epoch`` needs ``distributed=True``, else its order is not drawn yet.

        Raises: TypeError or ValueError for steps that are no counts; LookupError for a field that is not there;
        TypeError for an iterable dataset, and for a sampler that cannot be copied; StateError for one with a state of
        its own within another one (``last_batch="rollover"``), for steps before the position where a sampler's own
        state says where it is, or where it gives other batches now than in the run that saved the state.
        """
        return from_ring("torchpipe.observe.steps.asking:rows_of")(self, steps, keep, epoch)

    def item_at(self, step: int, *, epoch: int | None = None) -> Any:
        """The item that is, or was, number ``step`` of the epoch, made again in this process, to the bit; on no device.

        The loader stays where it is, and no rank is asked. Of a graph, items between :meth:`state_dict`'s position, or
        the start of the epoch, and this one are made as well. Of a map-style dataset, only the samples of the batch are
        read; with workers, ``worker_init_fn`` is called here before.

        Raises: IndexError where the epoch has no such step; what making items raises; TypeError and StateError as
        :meth:`rows`, and where a batch depends on those before it (``worker_seeding="torch"``, a dataset with a
        ``state_dict``).
        """
        return from_ring("torchpipe.observe.steps.asking:item_at")(self, step, epoch)


def watched(loader: Any, iterator: T) -> T:
    """``iterator``, which ``loader`` has just begun: watched if the environment asks for that (``TORCHPIPE_WATCH=1``).

    Of several ranks on a machine, the first one's are.
    """
    asked = os.environ.get("TORCHPIPE_WATCH", "0") not in ("", "0") and os.environ.get("LOCAL_RANK", "0") == "0"
    if asked and is_installed("observe"):
        from_ring("torchpipe.observe.views.watching:watch_while_it_runs")(loader, iterator)
    return iterator
