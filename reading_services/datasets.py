"""Workers of a ``DataLoader``: what ``torchpipe/data/workers.py`` asks for, wherever they run.

Runs in the main process. Workers of a map-style dataset make an item of each entry that the main process deals to them:
what torch's loader does. The graph's one source reads what is dealt (``context.host.supply``); whoever uses this
decides which entry goes to which worker, and when. A worker that dies is replaced, and its successor is dealt again
what has not come back as an item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reading_services.engine.ledger import LaneEntries
from reading_services.engine.policies import policies
from reading_services.engine.supervisor import Supervisor
from reading_services.engine.workers import Section, Workplace
from reading_services.hosted import HostedReadingService
from reading_services.images import image_of
from reading_services.processes.start_method import default_start_method, start_method
from reading_services.processes.workplace import Processes
from torchpipe.data.workers import WorkerEngine
from torchpipe.execution.limits import WorkerLimits
from torchpipe.execution.reading_service import EpochStart
from torchpipe.execution.shard import InitFn
from torchpipe.machine import Budget
from torchpipe.node.traits import DataPipe, node_name
from torchpipe.state import Cursor, SnapshotPolicy
from torchpipe.state.pickling import dumps

__all__ = ["DealingWorkers", "Engine", "TimedReadingService"]


class DealingWorkers(Supervisor):
    """``num_workers`` of ``place`` over ``graph``, a node without inputs, which are dealt what to make items of.

    ``steps``: of the node, how many note for themselves what they take.

    Raises: NotSerializableError, naming the attribute that cannot be sent to them; what ``place`` has to say.
    """

    def __init__(
        self,
        graph: DataPipe,
        num_workers: int,
        place: Workplace,
        *,
        init_fn: InitFn | None,
        limits: WorkerLimits,
        policy: Callable[[], SnapshotPolicy],
        steps: int,
        budget: Budget | None,
    ) -> None:
        place.check()
        self._place = place
        self._image = image_of(
            place.image,
            (graph,),
            (graph,),
            to=f"a {place.worker}",
            name=_the_loader,
            advice=place.advice,
            worker_init_fn=init_fn,
            worker_reset_fn=None,
            policy=policy,
        )
        pool = place.open_pool(Section(self._image, dict.fromkeys(range(steps), node_name(graph))))
        super().__init__(pool, num_workers, limits, policies(budget, num_workers, balance=place.balances))

    @property
    def processes(self) -> list[Any]:
        """The processes or actors of the workers just now, in the order of their numbers."""
        return self._pool.processes()

    def begin(
        self,
        start: EpochStart,
        cursors: Sequence[Cursor],
        *,
        stateless: bool,
        again: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        """Begin an epoch. ``stateless``: does an item depend on its entry alone? ``again``: what each cursor skips."""
        entries = {
            lane: LaneEntries.begin(cursor, stateless, [dumps(entry) for entry in (again[lane] if again else ())])
            for lane, cursor in enumerate(cursors)
        }
        self.begin_epoch(start, dict(enumerate(cursors)), entries)

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
            self._place.forget(self._image)


class TimedReadingService(HostedReadingService):
    """The host of an iterable dataset's shards: with a limit to each wait for an item, in torch's words."""

    def __init__(
        self,
        num_workers: int,
        place: Workplace,
        *,
        num_shards: int,
        init_fn: InitFn,
        limits: WorkerLimits,
        wait_s: float | None,
        autotune: bool | Budget,
    ) -> None:
        super().__init__(
            place,
            num_workers,
            num_shards,
            init_fn,
            None,
            SnapshotPolicy,
            limits=limits,
            main_prefetch_cnt=0,
            autotune=autotune,
        )
        self._wait_s = wait_s
        place.check()

    @property
    def processes(self) -> list[Any]:
        """The processes or actors of the workers just now, in the order of their numbers."""
        return [] if self._pool is None else self._pool.processes()

    @property
    def usable(self) -> bool:
        """True if another epoch may begin: after a call that was cut short, with new workers."""
        return True

    def close(self) -> None:
        """End all workers. Idempotent."""
        self.finalize()


def _the_loader(graph: DataPipe) -> str:
    """The graph has what users give to the loader."""
    return "the loader"


class Engine(WorkerEngine):
    """Workers in processes of this machine, or in any other :class:`~reading_services.engine.workers.Workplace`.

    Under fork, processes get the graph as it is when they are started; else it is pickled, once.
    """

    dealing = DealingWorkers
    streaming = TimedReadingService

    def takes(self, method: object) -> bool:
        return isinstance(method, Workplace)

    def processes(self, context: Any, *, on_device: bool) -> Workplace:
        if context is None and not on_device:
            context = default_start_method()
        return Processes(start_method(context, on_device=on_device), inherits=True)
