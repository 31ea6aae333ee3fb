"""Workers that make an item of each entry that the main process deals to them: what torch's loader does.

Runs in the main process. The graph's one source reads what is dealt (``context.host.supply``); whoever uses this
decides which entry goes to which worker, and when. A worker that dies is replaced, and its successor is dealt again
what has not come back as an item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any

from reading_services.engine.ledger import LaneEntries
from reading_services.engine.options import WorkerLimits
from reading_services.engine.policies import policies
from reading_services.engine.supervisor import Supervisor
from reading_services.images import image_of
from reading_services.multiprocessing import MultiProcessingReadingService
from reading_services.processes.graph_image import GraphImage
from reading_services.processes.pool import ProcessPool, Section
from reading_services.processes.start_method import default_start_method, start_method
from reading_services.ray import RayWorkers, TimedRayReadingService, actor_image, actor_pool
from torchpipe.execution.provider import ShardPosition
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import InitFn
from torchpipe.machine.budget import Budget
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import SnapshotPolicy
from torchpipe.state.pickling import dumps

if TYPE_CHECKING:
    from reading_services.actors.pool import ActorPool

__all__ = ["DealingWorkers", "RayWorkers", "TimedRayReadingService", "TimedReadingService", "WorkerLimits",
           "default_start_method"]  # fmt: skip


class DealingWorkers(Supervisor):
    """``num_workers`` processes over ``graph``, a node without inputs, which are dealt what to make items of; with
    ``where``, as many Ray actors.

    ``steps``: of the node, how many note for themselves what they take.

    Under fork, processes get the graph as it is when they are started; else it is pickled, here and now.

    Raises: NotSerializableError, naming the attribute that cannot be pickled.
    """

    def __init__(
        self,
        graph: DataPipe,
        num_workers: int,
        context: BaseContext | str | None,
        *,
        init_fn: InitFn | None,
        limits: WorkerLimits,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        steps: int = 1,
        budget: Budget | None = None,
        where: RayWorkers | None = None,
    ) -> None:
        names = dict(enumerate([node_name(graph)] * max(1, steps)))
        self._image: GraphImage | None = None
        self._pool: ProcessPool | ActorPool
        if where is None:
            context = start_method(context, on_device=context is None)
            forked = context.get_start_method() == "fork"
            self._image = image_of(
                GraphImage.inherited if forked else GraphImage.of,
                (graph,),
                (graph,),
                to="a worker process",
                name=_the_loader,
                advice='. multiprocessing_context="fork" needs no pickling',
                worker_init_fn=init_fn,
                worker_reset_fn=None,
                policy=policy,
            )
            self._pool = ProcessPool(context, Section(self._image, names))
        else:
            from reading_services.actors.pool import ActorSection

            image = image_of(
                actor_image,
                (graph,),
                (graph,),
                to="a Ray actor",
                name=_the_loader,
                worker_init_fn=init_fn,
                worker_reset_fn=None,
                policy=policy,
            )
            self._pool = actor_pool(where, ActorSection(image, len(names)), None, None)
        balance = where is not None and where.rebalance
        super().__init__(self._pool, num_workers, limits, policies(budget, num_workers, balance=balance))

    @property
    def processes(self) -> list[Any]:
        """The ``multiprocessing`` processes that run just now, or where actors run, in the order of their numbers."""
        return self._pool.processes()

    def begin(
        self,
        start: EpochStart,
        positions: list[ShardPosition],
        *,
        stateless: bool,
        again: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Begin an epoch. ``stateless``: does an item depend on its entry alone? ``again``: what each cursor skips."""
        entries = {
            item.lane: LaneEntries.begin(
                item, stateless, [dumps(entry) for entry in (again[item.lane] if again else ())]
            )
            for item in positions
        }
        self.begin_epoch(start, positions, entries)

    def deal(self, lane: int, entries: Sequence[Any], *, over: bool = False) -> None:
        """Let ``lane`` make an item of each of ``entries``, after those before; ``over``: there are no more.

        Raises: whatever pickling one raises, before any is dealt.
        """
        super().deal(lane, [dumps(entry) for entry in entries], over=over)

    def end_epoch(self) -> None:
        """Let the workers stop; they stay. Idempotent. After a call that was cut short, they end instead."""
        if self.usable:
            super().end_epoch()
        else:
            self.close()

    def close(self) -> None:
        """End the workers. Idempotent."""
        try:
            super().close()
        finally:
            if self._image is not None:
                self._image.close()


class TimedReadingService(MultiProcessingReadingService):
    """``MultiProcessingReadingService`` as torch's loader wants it: with a limit to each wait, and forked as it is."""

    def __init__(
        self, num_workers: int, context: BaseContext | str | None, *, wait_s: float | None, **more: Any
    ) -> None:
        super().__init__(num_workers, context, **more)
        self._wait_s = wait_s
        self._limits = replace(self._limits, torch_wording=True)

    @property
    def processes(self) -> list[Any]:
        """The ``multiprocessing`` processes that run just now."""
        return [] if self._pool is None else self._pool.processes()

    @property
    def usable(self) -> bool:
        """True if another epoch may begin: after a call that was cut short, with new processes."""
        return True

    def close(self) -> None:
        """End all processes. Idempotent."""
        self.finalize()

    def _make_images(self) -> None:
        if self._context.get_start_method() != "fork" or self.plan.dispatch is not None:
            super()._make_images()
        else:
            parts = (self._graphs.branches, self._init_fn, self._reset_fn, self._policy)
            self._graph = GraphImage.inherited(*parts)


def _the_loader(graph: DataPipe) -> str:
    """The graph has what users give to the loader."""
    return "the loader"
