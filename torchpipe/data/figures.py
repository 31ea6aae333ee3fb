"""The costs of a ``DataLoader``'s batches, for ``loader.stats()``: steps as rows, and worker threads as processes.

Runs in the user's process. The steps of a map-style dataset are numbered 1, the sampler, 2, reading samples, and 3,
putting them together; worker processes have these last two as nodes 0 and 1 (``fetch``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from torchpipe.data.fetch import COLLATING, READING
from torchpipe.data.order.samplers import RolloverBatchSampler
from torchpipe.execution.figures import Made, ServiceFigures, with_figures
from torchpipe.execution.ranks import RankGroup
from torchpipe.loader.observing import LoaderFigures, Looks, Observed
from torchpipe.node.traits import callable_name
from torchpipe.stats import NodeStats, ProcessStats, QueueStats
from torchpipe.stats.sheet import AWAITING_CREDIT, AWAITING_INPUT, IDLE, MAKING, Times, TimeSheet

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader
    from torchpipe.data.ranks.windows import Windows

__all__ = ["Observable", "Steps", "ThreadTimes"]

_SAMPLER, _DATASET, _COLLATE = 1, 2, 3


class Observable(Looks):
    """Mixed into the loader."""

    num_workers: int
    measuring: bool  # from the next epoch on
    _live: Any
    _windows: Windows | None = None  # of the epoch that was begun last
    _ranks: RankGroup | None
    _observed: tuple[Observed, ServiceFigures] | None = None  # of the epoch that has ended last

    def _figures(self) -> LoaderFigures:
        live = self._live
        observed, figures = (self._observed or (None, _planned(self))) if live is None else live.observe()
        try:
            total = len(self)  # type: ignore[arg-type]
        except Exception:  # a length of the user's may fail in any way, and is only asked for what it may tell
            total = None
        return LoaderFigures(
            observed=observed,
            figures=figures,
            total=total,
            shards=max(1, self.num_workers),
            ranks=1 if self._ranks is None else self._ranks.world_size,
            balance=None if self._windows is None else self._windows.stats(),
        )


def _planned(loader: Any) -> ServiceFigures:
    """The figures before anything has run: the nodes, and the workers to come."""
    workers: int = loader.num_workers
    nodes: tuple[NodeStats, ...]
    if loader._is_iterable:
        name = type(loader._plain_dataset()).__name__
        nodes = (NodeStats(number=1, name=name, section="shard"),)
    else:
        nodes = Steps(loader).rows(())
    if not workers:
        return ServiceFigures(nodes=nodes)
    context: Any = loader.multiprocessing_context
    found = torch.multiprocessing.get_start_method(allow_none=True) or torch.multiprocessing.get_all_start_methods()[0]
    method = found if context is None else context.get_start_method()
    if loader.worker_method != "multiprocessing":
        method = getattr(loader.worker_method, "method", loader.worker_method)
    return ServiceFigures(workers=workers, method=method, nodes=nodes)


class Steps:
    """The steps of a batch of a map-style dataset. ``sampler_s``: the sampler's time, for ``asked`` batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        sampler = loader._index_sampler
        if type(sampler) in (BatchSampler, RolloverBatchSampler):  # what these put together is another's
            sampler = sampler.sampler
        name = type(sampler).__name__
        dataset = loader._plain_dataset()
        collate = callable_name(loader.collate_fn)
        self._sampler = NodeStats(number=_SAMPLER, name=name, section="dispatch")
        self._rows = (
            NodeStats(number=_DATASET, name=f"{type(dataset).__name__}[...]", section="shard", inputs=(_SAMPLER,)),
            NodeStats(number=_COLLATE, name=collate, section="shard", inputs=(_DATASET,)),
        )
        self.sampler_s = 0.0
        self.asked = 0

    def rows(self, made: Sequence[Made]) -> tuple[NodeStats, ...]:
        """With what workers, or this process, have noted."""
        found = self._rows
        if made:
            found = with_figures(self._rows, {READING: _DATASET, COLLATING: _COLLATE}, (_COLLATE,), made)  # type: ignore[assignment]
        return (self._of_sampler(), *found)

    def _of_sampler(self) -> NodeStats:
        if not self.asked:
            return self._sampler
        return NodeStats(
            number=_SAMPLER,
            name=self._sampler.name,
            section=self._sampler.section,
            processes=1,
            items=self.asked,
            self_s=self.sampler_s,
            mean_s=self.sampler_s / self.asked,
            exact=True,
        )


class ThreadTimes:
    """The times of worker threads in an epoch. Each has a sheet; the consumer's thread says what they wait for."""

    def __init__(self, threads: int) -> None:
        self.sheets = [TimeSheet([0] * TimeSheet.SIZE) for _ in range(threads)]
        self._before = [Times() for _ in range(threads)]
        self._awaited = [AWAITING_CREDIT] * threads

    def begin_epoch(self) -> None:
        self._before = [sheet.read() for sheet in self.sheets]

    def awaits(self, thread: int, *, credit: bool) -> None:
        """Once it has made what it has: for the consumer to use that up, or for something to make."""
        self._awaited[thread] = AWAITING_CREDIT if credit else AWAITING_INPUT

    @contextmanager
    def during(self, thread: int) -> Iterator[None]:
        """Meanwhile it makes an item."""
        sheet = self.sheets[thread]
        sheet.turn_to(MAKING)
        try:
            yield
        finally:
            sheet.count(1)
            sheet.turn_to(self._awaited[thread])

    def rest(self) -> None:
        """Nothing more is wanted."""
        for sheet in self.sheets:
            sheet.turn_to(IDLE)

    def made(self) -> list[int]:
        """Items of each thread."""
        return [sheet.read().made - before.made for sheet, before in zip(self.sheets, self._before)]

    def processes(self) -> tuple[ProcessStats, ...]:
        rows = []
        for number, (sheet, before) in enumerate(zip(self.sheets, self._before)):
            times = sheet.read()
            doing, doing_s = times.doing, times.doing_ns / 1e9
            times.add(before, -1)
            rows.append(
                ProcessStats(
                    name=f"thread {number}",
                    kind="thread",
                    pid=os.getpid(),
                    doing=doing,
                    doing_s=doing_s,
                    shards=(number,),
                    items=times.made,
                    making_s=times.seconds(MAKING),
                    credit_wait_s=times.seconds(AWAITING_CREDIT),
                    input_wait_s=times.seconds(AWAITING_INPUT),
                    cpu_s=0.0,  # in that of this process
                )
            )
        return tuple(rows)

    def queue(self, thread: int, fill: int, limit: int) -> QueueStats:
        """Items of a thread that wait for the loop."""
        return QueueStats(
            name=f"shard {thread}", source=f"thread {thread}", target="main", unit="items", fill=fill, limit=limit
        )
