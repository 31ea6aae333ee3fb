"""The figures of a loader, and the looks at it that each loader offers: a line for each thing that the ring ``observe``
makes.

Runs in the user's process. The ring is imported when it is asked for. ``loader.stats()`` asks no process and stops no
thread; any thread may call it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.execution.clock import Clock
from torchpipe.execution.epoch import LeftOver
from torchpipe.execution.figures import ServiceFigures
from torchpipe.execution.merge import MergeIterator
from torchpipe.machine import available_cores, resident_bytes
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
from torchpipe.rings import from_ring, is_installed
from torchpipe.stats import (
    BalanceStats,
    ConsumerStats,
    Event,
    LoaderStats,
    MergeStats,
    Moment,
    NodeStats,
    ProcessStats,
    QueueStats,
    StageStats,
)
from torchpipe.stats.model import rebuilt_s

__all__ = [
    "AskedSteps",
    "GraphFormat",
    "HasFigures",
    "LoaderFigures",
    "Looks",
    "Observed",
    "left_over_of",
    "merges_of",
    "stages_of",
    "watched",
]


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The figures of an epoch in this process, as plain values: it keeps nothing alive."""

    epoch: int
    delivered: int
    state: Any
    began_at: float
    cpu_s: float
    busy_s: float  # of all the machine's processes
    span_s: float  # in which these were spent
    consumer: ConsumerStats
    merges: tuple[MergeStats, ...]
    stages: tuple[StageStats, ...]
    timeline: tuple[Moment, ...]
    left_over: LeftOver | None = None

    @classmethod
    def of(
        cls,
        clock: Clock,
        merges: tuple[MergeStats, ...],
        stages: Sequence[StageStats],
        *,
        epoch: int,
        delivered: int,
        before: int,
        finished: bool,
        over: bool,
        left_over: LeftOver | None = None,
    ) -> Observed:
        """``before``: how many of the ``delivered`` items were handed out by others."""
        return cls(
            epoch=epoch,
            delivered=delivered,
            state="finished" if finished else "closed" if over else "running",
            began_at=clock.began_at,
            cpu_s=clock.cpu_s(),
            busy_s=clock.busy_s(),
            span_s=clock.span_s(),
            consumer=clock.consumer(delivered - before),
            merges=merges,
            stages=tuple(stages),
            timeline=clock.timeline(),
            left_over=left_over,
        )


def left_over_of(stream: NodeIterator[Any]) -> LeftOver | None:
    """The rest that the end of ``stream`` has left out, for the sake of ranks or shards that had no more."""
    return next((found for part in _parts(stream) if (found := getattr(part, "left_over", None)) is not None), None)


def merges_of(stream: NodeIterator[Any]) -> tuple[MergeStats, ...]:
    """The figures of the merges that ``stream`` reads from."""
    return tuple(part.stats() for part in _parts(stream) if isinstance(part, MergeIterator))


def stages_of(stream: NodeIterator[Any]) -> list[StageStats]:
    """The stages of ``stream`` that run ahead, the one nearest to the loop first; they have no numbers yet."""
    return [
        StageStats(name=node_name(part.node), node=0, device=part.moves, threads=part.threads, feed=part.stats())
        for part in _parts(stream)
        if isinstance(part, RunAheadIterator)
    ]


def _parts(stream: NodeIterator[Any]) -> list[NodeIterator[Any]]:
    parts = [stream]
    for part in parts:
        parts += part.inputs
    return parts


@dataclass(frozen=True, kw_only=True)
class LoaderFigures:
    """The figures of an epoch of a loader. ``observed``: None before the first one."""

    observed: Observed | None
    figures: ServiceFigures
    total: int | None
    shards: int
    ranks: int = 1
    state_bytes: int | None = None
    balance: BalanceStats | None = None


class HasFigures:
    """A loader, or what knows its epochs."""

    def stats(self) -> LoaderStats:
        """The figures of the live epoch, or else of the last one: who waits for whom, and what to change.

        ``print(loader.stats())`` begins with one sentence. Asks no process and stops nothing; from any thread, at any
        time, also before the first item and after :meth:`shutdown`. Raises: RuntimeError in a forked child.
        """
        return _as_stats(self._figures())

    def _figures(self) -> LoaderFigures:
        raise NotImplementedError


def _as_stats(found: LoaderFigures) -> LoaderStats:
    """The whole tree."""
    observed, figures = found.observed, found.figures
    if observed is None:
        observed = Observed(
            epoch=0, delivered=0, state="new", began_at=0.0, cpu_s=0.0, busy_s=0.0, span_s=0.0,
            consumer=ConsumerStats(), merges=(), stages=(), timeline=(),
        )  # fmt: skip
    stages = tuple(replace(stage, node=_number(figures, stage.name)) for stage in observed.stages)
    left, events = observed.left_over, figures.events
    if left is not None:
        events = (*events, Event(at=left.at, kind="uneven", process="main", text=str(left)))
    return LoaderStats(
        state=observed.state,
        measured=any(node.self_s is not None for node in figures.nodes),
        epoch=observed.epoch,
        delivered=observed.delivered,
        total=found.total,
        began_at=observed.began_at or None,
        workers=figures.workers,
        shards=found.shards,
        method=figures.method,
        cores=available_cores(),
        others=_others(observed, figures),
        ranks=found.ranks,
        dispatcher=figures.dispatcher,
        restarts=figures.restarts,
        longest_dispatch_buffer=figures.longest_dispatch_buffer,
        state_bytes=found.state_bytes,
        left_over=0 if left is None else left.items,
        balance=found.balance,
        consumer=observed.consumer,
        merges=observed.merges,
        stages=stages,
        nodes=_with_moved(figures, stages),
        processes=(_main(observed, figures), *figures.processes),
        queues=(*figures.queues, *(queue for stage in stages for queue in _queues(stage))),
        events=events,
        timeline=observed.timeline,
    )


def _others(observed: Observed, figures: ServiceFigures) -> float | None:
    """The share of the machine that other programs used."""
    whole_s = observed.span_s
    if not observed.busy_s or not whole_s:
        return None
    own_s = observed.cpu_s + sum(process.cpu_s or 0.0 for process in figures.processes)
    return min(1.0, max(0.0, observed.busy_s - own_s) / whole_s / (os.cpu_count() or 1))


def _with_moved(figures: ServiceFigures, stages: Sequence[StageStats]) -> tuple[NodeStats, ...]:
    """The nodes; what device stages have moved is known exactly, measured or not."""
    moved = {stage.node: stage.feed.moved_bytes for stage in stages if stage.device and stage.feed.moved_bytes}
    return tuple(replace(node, bytes=moved.get(node.number, node.bytes)) for node in figures.nodes)


def _number(figures: ServiceFigures, name: str) -> int:
    """The number of the main section's node of this name, the last one if there are several; 0 if there is none."""
    return next((node.number for node in reversed(figures.nodes) if node.name.startswith(name)), 0)


def _main(observed: Observed, figures: ServiceFigures) -> ProcessStats:
    """This process: without workers, it makes the items."""
    pulled = sum(sum(merge.shard_wait_s) for merge in observed.merges)
    rebuilt = rebuilt_s(observed.merges)
    return ProcessStats(
        name="main",
        kind="main",
        pid=os.getpid(),
        doing="idle" if observed.state != "running" else "making",
        items=observed.consumer.items,
        making_s=0.0 if figures.workers else pulled,
        sending_s=rebuilt,
        input_wait_s=max(0.0, pulled - rebuilt) if figures.workers else 0.0,
        cpu_s=observed.cpu_s,
        memory_bytes=resident_bytes() if observed.state == "running" else None,
    )


def _queues(stage: StageStats) -> list[QueueStats]:
    feed = stage.feed
    ahead = QueueStats(
        name=f"{stage.name} ready",
        source=stage.name,
        target="your loop",
        unit="batches" if stage.device else "items",
        fill=feed.ready,
        bytes=feed.ready_bytes if stage.device else None,
        source_wait_s=feed.feeder_wait_s,
        target_wait_s=feed.consumer_wait_s,
    )
    if not feed.waiting:
        return [ahead]
    host = QueueStats(
        name=f"{stage.name} host", source="main", target=stage.name, unit="batches", fill=feed.waiting,
        bytes=feed.waiting_bytes,
    )  # fmt: skip
    return [ahead, host]


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
        return from_ring("torchpipe.observe.views.lanes:TraceFile")(self, path, every_s)

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
