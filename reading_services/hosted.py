"""Reading services whose shards run in workers that a supervisor watches, wherever these run.

Runs in the main process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reading_services.engine.workers import Section, WorkerPool, Workplace
from reading_services.images import image_of
from torchpipe.device import DeviceOptions, resolve
from torchpipe.errors import IteratorInvalidated
from torchpipe.execution.exact import cursor_from
from torchpipe.execution.figures import ServiceFigures, ServiceStats
from torchpipe.execution.limits import OnDeath, Restart, WorkerLimits
from torchpipe.execution.provider import ShardProvider
from torchpipe.execution.reading_service import EpochStart, ShardedReadingService
from torchpipe.execution.shard import Chunk, InitFn, ResetFn
from torchpipe.graph import draw
from torchpipe.iter.running import Prefetcher
from torchpipe.iter.to_device import ToDevice
from torchpipe.machine import Budget, budget_of
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, node_name, walk
from torchpipe.node.validate import check_count
from torchpipe.state import Cursor, SnapshotPolicy

if TYPE_CHECKING:
    from reading_services.engine.supervisor import Supervisor

__all__ = ["HostedReadingService", "numbered_names", "worker_limits"]

_log = logging.getLogger("torchpipe")


def worker_limits(worker_prefetch_cnt: int, worker_prefetch_bytes: int, on_worker_death: OnDeath) -> WorkerLimits:
    """A service's arguments of these names, checked. Raises: ValueError, TypeError."""
    return WorkerLimits(
        window=max(1, check_count("worker_prefetch_cnt", worker_prefetch_cnt, at_least=0)),
        window_bytes=check_count("worker_prefetch_bytes", worker_prefetch_bytes, at_least=1),
        deaths=Restart.of(on_worker_death),
    )


class HostedReadingService(ShardedReadingService):
    """The base of services with workers: their workers over many epochs, the stages in the main process, figures."""

    _wait_s: float | None = None  # the longest wait for an item
    _wants_nodes = False

    def __init__(
        self,
        workplace: Workplace,
        num_workers: int,
        num_shards: int | None,
        init_fn: InitFn | None,
        reset_fn: ResetFn | None,
        policy: Callable[[], SnapshotPolicy],
        *,
        limits: WorkerLimits,
        main_prefetch_cnt: int,
        device: Any = None,
        timeout: float | None = None,
        autotune: bool | Budget,
    ) -> None:
        super().__init__(num_shards, init_fn, reset_fn, policy)
        self._budget = budget_of(autotune, num_workers)
        self._num_workers = check_count("num_workers", num_workers, at_least=0)
        self._main_prefetch_cnt = check_count("main_prefetch_cnt", main_prefetch_cnt, at_least=0)
        if num_shards is not None and num_shards < num_workers:
            raise ValueError(
                f"num_shards={num_shards} is less than num_workers={num_workers}: some workers would have no "
                f"shard. Give num_workers={num_shards} or fewer, or more shards"
            )
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be 0 seconds or more (0: no limit) or None, got {timeout!r}")
        self._limits, self._silent_s = limits, timeout or None
        self._device_options = DeviceOptions.given(device)
        self._device = None if self._device_options is None else resolve(self._device_options)
        self._workplace = workplace
        self._images: tuple[Any, Any] | None = None  # what the workers of shards, and the dispatcher, are sent
        self._workers: Supervisor | None = None
        self._pool: WorkerPool | None = None  # that they are in
        # Here, since workers import this module and need none of it, and not at the first epoch, which it would delay.
        import reading_services.engine.supervisor  # noqa: F401

        self._earlier_restarts = 0  # of workers that have been shut down since
        self._earlier_longest = 0
        self._last_figures = ServiceFigures()

    def worker_pids(self) -> list[int]:
        """The process ids of the workers that run just now, in the order of their numbers."""
        return [] if self._pool is None else self._pool.pids()

    def _prepare(self) -> None:
        """Look whether workers can be started here, and make what they are sent, if that is not there yet.

        That is pickled once: all get the same, and an error comes where the loader is made.

        Raises: NotSerializableError, naming the node; RuntimeError and the like.
        """
        self._workplace.check()
        if self._images is None:
            self._images = self._make_images()

    def _make_images(self) -> tuple[Any, Any]:
        plan, place = self.plan, self._workplace
        shards = image_of(
            place.image,
            plan.shard_nodes,
            self._graphs.branches,
            to=f"a {place.worker}",
            worker_init_fn=self._init_fn,
            worker_reset_fn=self._reset_fn,
            policy=self._policy,
        )
        if plan.dispatch is None:
            return shards, None
        to = f"the dispatcher {place.kind}"
        return shards, image_of(place.image, plan.dispatch_nodes, plan.dispatch, to=to, policy=self._policy)

    def _forget(self) -> None:
        """Let go of what workers are sent. Idempotent."""
        images, self._images = self._images or (), None
        for image in images:
            if image is not None:
                self._workplace.forget(image)

    def _new_pool(self) -> WorkerPool:
        """A pool that starts workers of the prepared images."""
        assert self._images is not None
        (shards, dispatched), root = self._images, self.plan.dispatch
        return self._workplace.open_pool(
            Section(shards, numbered_names(*self._graphs.branches)),
            None if root is None else Section(dispatched, numbered_names(root)),
            silent_s=self._silent_s,
        )

    @property
    def num_workers(self) -> int:
        return self._num_workers

    @property
    def worker_prefetch_cnt(self) -> int:
        return self._limits.window

    @property
    def main_prefetch_cnt(self) -> int:
        return self._main_prefetch_cnt

    @property
    def default_num_shards(self) -> int:
        return self._num_shards or self._num_workers or 1

    @property
    def restarts(self) -> int:
        """The number of workers that died and were replaced, over the whole life of this service, shutdowns included.

        The logger ``torchpipe`` has a warning for each. A death that became an error counts if the worker had other
        shards that go on. ``Restart(max_restarts=...)`` limits this number.
        """
        return self._earlier_restarts if self._workers is None else self._workers.restarts

    def stats(self) -> ServiceStats:
        """Counters of this service's workers; asks nobody. May be called from any thread."""
        longest = 0 if self._workers is None else self._workers.longest_backlog
        return ServiceStats(
            restarts=self.restarts,
            processes=len(self.worker_pids()),
            longest_dispatch_buffer=max(longest, self._earlier_longest),
        )

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        datapipe = super().initialize(datapipe)
        if self._num_workers:
            self._prepare()
        return datapipe

    def explain(self, num_shards: int | None = None) -> str:
        shards = num_shards or self.default_num_shards
        workers = min(self._num_workers, shards)
        if not workers:
            where = f"in this process, {shards} shard{'s' if shards > 1 else ''}"
            return draw(self.plan, where, "in this process", self._appended())
        where, dispatcher = self._workplace.described(workers), f"a dispatcher {self._workplace.kind}"
        return draw(
            self.plan, f"{shards} shards in {where}", "in this process", self._appended(), f"once, in {dispatcher}"
        )

    @property
    def measuring(self) -> bool:
        return self._wants_nodes

    @measuring.setter
    def measuring(self, value: bool) -> None:
        self._wants_nodes = value
        if self._workers is not None:
            self._workers.measure_nodes(value)

    def _service_figures(self) -> ServiceFigures:
        stats, workers = self.stats(), self._workers
        return replace(
            self._last_figures if workers is None else workers.figures(),
            workers=min(self._num_workers, self.default_num_shards) if workers is None else workers.num_workers,
            restarts=stats.restarts,
            longest_dispatch_buffer=stats.longest_dispatch_buffer,
        )

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        if self._num_workers:
            self._prepare()
        if self._num_workers:
            # Before the stream is made: a state that is loaded into it may pull items in another thread at once. And
            # in the caller's thread, not in the one that will pull: the processes outlive that.
            self._choose_workers(start).start()
        return super().initialize_iteration(start)

    def finalize_iteration(self) -> None:
        if self._workers is None:
            return
        if self._workers.usable:
            self._workers.end_epoch()
        else:
            self._end_workers()

    def finalize(self) -> None:
        try:
            self._end_workers()
        finally:
            self._forget()

    def _end_workers(self) -> None:
        workers, self._workers, self._pool = self._workers, None, None
        if workers is not None:
            self._earlier_restarts = workers.restarts
            self._earlier_longest = max(self._earlier_longest, workers.longest_backlog)
            self._last_figures = workers.figures()
            workers.close()

    def _main_root(self, root: DataPipe) -> DataPipe:
        if self._device is not None and self._device_options is not None:
            return ToDevice.with_options(root, self._device, self._device_options)  # type: ignore[arg-type]
        staged = any(isinstance(node, ToDevice) for node in self.plan.main_nodes)
        if self._num_workers and self._main_prefetch_cnt and self.plan.main_nodes and not staged:
            return Prefetcher(root, self._main_prefetch_cnt)  # type: ignore[arg-type]
        return root

    def _threads_in_main(self) -> bool:
        return self._num_workers > 0

    def _start_shards(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> ShardProvider:
        if not self._num_workers:
            return self._start_local_shards(start, cursors)
        workers = self._workers
        if workers is None:
            raise IteratorInvalidated("the workers of this epoch have been ended: make a new iterator")
        workers.begin_epoch(start, cursors)
        return _Epoch(workers, self._wait_s)

    def _choose_workers(self, start: EpochStart) -> Supervisor:
        """The workers for this epoch, chosen once, before it begins: other ones than before only if a loaded state
        brought another number of shards, or if these cannot go on.
        """
        most = min(self._num_workers, len(start.shards))
        if self._workers is not None and (self._workers.most != most or not self._workers.usable):
            self._end_workers()
        if self._workers is None:
            if most < self._num_workers:
                _log.warning(
                    "starting %d workers in place of num_workers=%d: this process has %d shards",
                    most,
                    self._num_workers,
                    most,
                )
            self._prepare()
            self._pool, self._workers = self._new_workers(most)
            self._workers.measure_nodes(self._wants_nodes)
        return self._workers

    def _new_workers(self, most: int) -> tuple[WorkerPool | None, Supervisor]:
        """New workers in a pool, none of them started yet."""
        from reading_services.engine.policies import policies
        from reading_services.engine.supervisor import Supervisor

        pool = self._new_pool()
        return pool, Supervisor(
            pool,
            most,
            self._limits,
            policies(self._budget, most, balance=self._workplace.balances),
            dispatch_branch=self._dispatch_branch,
            restarts=self._earlier_restarts,
        )

    def _exact_cursors(self, start: EpochStart, cursors: Mapping[int, Cursor]) -> dict[int, Cursor]:
        """Workers beside the run's make the last item before each again, as in a resume, and take snapshots.

        As many as the run may have: what a process of its own promises a shard (objects that it reads in place, what
        ``worker_init_fn`` sets in modules) holds of these as of the run's.
        """
        if not self._num_workers:
            return super()._exact_cursors(start, cursors)
        if not cursors:
            return {}
        self._prepare()
        _, workers = self._new_workers(min(self._num_workers, len(cursors)))
        try:
            workers.start()
            before = {shard: cursor.before() for shard, cursor in cursors.items()}
            workers.begin_epoch(start, before, snapshot_first=True)
            return {
                shard: cursor_from(workers.pull_any((shard,), self._wait_s)[1], shard, cursor)
                for shard, cursor in cursors.items()
            }
        finally:
            workers.close()

    @property
    def _dispatch_branch(self) -> int:
        return -1 if self.plan.dispatch is None else self.plan.dispatch_branch


class _Epoch(ShardProvider):
    """The shards of one epoch, as the workers produce them."""

    def __init__(self, workers: Supervisor, wait_s: float | None) -> None:
        self._workers = workers
        self._wait_s = wait_s
        self._rebuilt_before_s = workers.rebuild_s

    @property
    def rebuild_s(self) -> float:  # type: ignore[override]
        return self._workers.rebuild_s - self._rebuilt_before_s

    def pull(self, lane: int) -> Chunk:
        return self.pull_any((lane,))[1]

    def pull_any(self, lanes: Sequence[int]) -> tuple[int, Chunk]:
        return self._workers.pull_any(lanes, self._wait_s)

    def interrupt(self) -> None:
        self._workers.interrupt()

    def close(self) -> None:
        self._workers.end_epoch()


def numbered_names(*roots: DataPipe) -> dict[int, str]:
    """The names of a section's nodes by the numbers that a worker notes."""
    numbers = GraphIndex.of(*roots).numbers
    return {numbers[id(node)]: node_name(node) for root in roots for node in walk(root) if id(node) in numbers}
