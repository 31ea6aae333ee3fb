"""``loader.stats()``: what the iterator of an epoch and the reading service know, put together.

Runs in the user's process. Nothing here asks a process or stops a thread; any thread may call it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.ahead.iterators import RunAheadIterator
from torchpipe.execution.clock import Clock
from torchpipe.execution.epoch import LeftOver
from torchpipe.execution.merge import MergeIterator
from torchpipe.execution.service_figures import ServiceFigures
from torchpipe.machine import available_cores, resident_bytes
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import node_name
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

__all__ = ["HasFigures", "LoaderFigures", "Observed", "left_over_of", "merges_of", "stages_of"]


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
