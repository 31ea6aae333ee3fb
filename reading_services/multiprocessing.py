"""``MultiProcessingReadingService``: shards run in worker processes that may die at any moment.

Runs in the main process.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, cast

from reading_services.engine.options import WorkerLimits
from reading_services.processes.graph_image import GraphImage
from reading_services.processes.start_method import start_method
from reading_services.processes.unpicklable import what_fails
from torchpipe.device import DeviceOptions, resolve
from torchpipe.device.options import OnNewShape, PadTo, Sync
from torchpipe.errors import NotSerializableError
from torchpipe.execution.provider import ShardPosition, ShardProvider
from torchpipe.execution.reading_service import EpochStart, ShardedReadingService
from torchpipe.execution.shard import Chunk, InitFn, ResetFn
from torchpipe.graph import draw
from torchpipe.iter.running.prefetch import Prefetcher
from torchpipe.iter.running.to_device import ToDevice
from torchpipe.node.context import Context
from torchpipe.node.iterator import NodeIterator
from torchpipe.node.traits import DataPipe, node_name, thins, walk, with_inputs
from torchpipe.node.validate import check_count
from torchpipe.state import SnapshotPolicy
from torchpipe.stats.budget import Budget, budget_of
from torchpipe.stats.service import ServiceFigures, ServiceStats

if TYPE_CHECKING:
    from reading_services.processes.places import ProcessPlaces
    from reading_services.workers import Workers

__all__ = ["MultiProcessingReadingService", "ServiceStats"]

_log = logging.getLogger("torchpipe")


class MultiProcessingReadingService(ShardedReadingService):
    """Runs each shard's section in a worker process, and takes from the shards in turn.

    A worker that dies, for whatever reason, is replaced, and the stream goes on bit for bit. Put ``sharding_filter()``
    into the graph where the stream is to be divided. With ``num_workers=0`` everything runs in this process and nothing
    ahead: batches are moved to ``device`` when they are asked for.

    Args:
        num_workers: worker processes.
        multiprocessing_context: ``"fork"``, ``"spawn"`` or ``"forkserver"``, or a context of ``multiprocessing``. None:
            forkserver if an accelerator runtime will live in this process (``device`` is given) or does already, else
            the platform's default. A name or None sets what the program's forkserver imports beforehand to
            ``reading_services.PRELOADED``; with a context, it stays as you have set it.
        worker_prefetch_cnt: messages that each shard may run ahead of the consumer (0 counts as 1). A message is one
            item, or as many small ones as come within 2 ms and 1 MiB.
        main_prefetch_cnt: items that a thread of this process runs ahead through what the main section has to do; 0
            for no thread. Where it has nothing to do, there is none; with ``device``, the device stage has its own.
        worker_init_fn: ``(datapipe, worker_info) -> datapipe``, once for each shard in the process that hosts it.
        worker_reset_fn: ``(datapipe, worker_info, seed_generator) -> datapipe``, for each shard and epoch.
        worker_prefetch_bytes: bytes that each shard may run ahead of the consumer, if that is more than two messages;
            give more where some batches take much longer to make than others, and memory allows it.
        num_shards: the number of shards that the stream is divided into, fixed for the run; default ``num_workers``.
            The stream depends on it, but not on ``num_workers``.
        device: ``"xla"``, ``"cuda"``, ``"cpu"``: appends a stage that moves batches there ahead of the consumer.
        device_prefetch: how many batches it keeps ahead on the device.
        timeout: seconds without a sign of life after which a worker is taken for stopped, killed and replaced. Choose
            it longer than any native call of yours that keeps the interpreter lock. None: never.
        max_deaths: deaths at one and the same item that are an error. Give more where workers are killed from outside
            now and then (SIGKILL, preemption) and an item takes long.
        max_restarts: how many processes this service may replace in its whole life; one death more is an error, whoever
            is to blame (in the next epoch, if nothing was needed of the process in this one). None: any number, so that
            accidents slow a run and never end it.
        policy: how often snapshots are taken; the default costs about 1 % of the time.
        autotune: choose by measurement how many processes, at most ``num_workers``, host the shards, and how far they
            run ahead, while the stream goes on and stays the same. True, or a :class:`~torchpipe.stats.Budget`.
            ``loader.stats().events`` and the logger ``torchpipe`` say what was chosen.

    The other arguments (``host_prefetch`` ... ``pad_to``) are options of the device stage, as
    :class:`~torchpipe.device.DeviceOptions` has them.

    Raises: ValueError or TypeError for arguments out of range, ImportError for a device whose library is missing;
    GraphError and NotSerializableError, naming the node, when a loader is built with it.
    """

    _wait_s: float | None = None  # the longest wait for an item
    _wants_nodes = False

    def __init__(
        self,
        num_workers: int = 0,
        multiprocessing_context: str | BaseContext | None = None,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: InitFn | None = None,
        worker_reset_fn: ResetFn | None = None,
        *,
        worker_prefetch_bytes: int = 8 << 20,
        num_shards: int | None = None,
        device: Any = None,
        device_prefetch: int = 2,
        host_prefetch: int = 0,
        device_prefetch_bytes: int | None = None,
        host_prefetch_bytes: int | None = None,
        transfer_threads: int = 1,
        dtype: Any = None,
        convert_numpy: bool = False,
        input_sharding: Any = None,
        sync: Sync = "none",
        batches_per_execution: int = 1,
        wait_every: int | None = None,
        on_new_shape: OnNewShape = "allow",
        pad_value: float = 0,
        pad_to: PadTo | None = None,
        timeout: float | None = None,
        max_deaths: int = 3,
        max_restarts: int | None = None,
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        autotune: bool | Budget = False,
    ) -> None:
        super().__init__(num_shards, worker_init_fn, worker_reset_fn, policy)
        self._budget = budget_of(autotune, num_workers)
        self._num_workers = check_count("num_workers", num_workers, at_least=0)
        self._worker_prefetch_cnt = check_count("worker_prefetch_cnt", worker_prefetch_cnt, at_least=0)
        worker_prefetch_bytes = check_count("worker_prefetch_bytes", worker_prefetch_bytes, at_least=1)
        self._main_prefetch_cnt = check_count("main_prefetch_cnt", main_prefetch_cnt, at_least=0)
        device_prefetch = check_count("device_prefetch", device_prefetch, at_least=1)
        self._device_options = DeviceOptions.among(locals())
        plain = DeviceOptions(device_prefetch=device_prefetch)
        if device is None and self._device_options != plain:
            given = [
                field.name
                for field in fields(plain)
                if getattr(self._device_options, field.name) != getattr(plain, field.name)
            ]
            raise ValueError(
                f"options of the device stage ({', '.join(given)}) have no meaning without device=...: name the device "
                "here, or give them to to_device() in the graph"
            )
        max_deaths = check_count("max_deaths", max_deaths, at_least=1)
        max_restarts = None if max_restarts is None else check_count("max_restarts", max_restarts, at_least=0)
        if num_shards is not None and num_shards < num_workers:
            raise ValueError(
                f"num_shards={num_shards} is less than num_workers={num_workers}: some workers would have nothing to "
                "do. Use at most num_shards workers"
            )
        if timeout is not None and not isinstance(timeout, int | float):
            raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout!r}")
        self._limits = WorkerLimits(
            window=max(1, self._worker_prefetch_cnt),
            window_bytes=worker_prefetch_bytes,
            max_deaths=max_deaths,
            max_restarts=max_restarts,
        )
        self._silent_s = timeout or None
        self._device = None if device is None else resolve(device, self._device_options)
        self._context = start_method(multiprocessing_context, on_device=device is not None)
        self._graph: GraphImage | None = None
        self._dispatch: GraphImage | None = None
        self._places: ProcessPlaces | None = None
        self._workers: Workers | None = None
        # Here, since workers import this module and need none of it, and not at the first epoch, which it would delay.
        import reading_services.processes.places
        import reading_services.workers  # noqa: F401

        self._earlier_restarts = 0  # of workers that have been shut down since
        self._earlier_longest = 0
        self._last_figures = ServiceFigures()

    @property
    def num_workers(self) -> int:
        return self._num_workers

    @property
    def worker_prefetch_cnt(self) -> int:
        return self._worker_prefetch_cnt

    @property
    def main_prefetch_cnt(self) -> int:
        return self._main_prefetch_cnt

    @property
    def default_num_shards(self) -> int:
        return self._num_shards or self._num_workers or 1

    @property
    def restarts(self) -> int:
        """How many processes died and were replaced, over the whole life of this service, shutdowns included.

        The logger ``torchpipe`` has a warning for each. One whose death became an error counts if it had other shards
        that go on. ``max_restarts`` is a limit to this number.
        """
        return self._earlier_restarts if self._workers is None else self._workers.supervisor.restarts

    def stats(self) -> ServiceStats:
        """Counters of this service's processes; asks nobody. May be called from any thread."""
        longest = 0 if self._workers is None else self._workers.supervisor.longest_backlog
        return ServiceStats(
            restarts=self.restarts,
            processes=len(self.worker_pids()),
            longest_dispatch_buffer=max(longest, self._earlier_longest),
        )

    def worker_pids(self) -> list[int]:
        """The process ids of the workers that run just now, in the order of their numbers."""
        return [] if self._places is None else self._places.pids()

    def initialize(self, datapipe: DataPipe) -> DataPipe:
        datapipe = super().initialize(datapipe)
        if self._num_workers:
            _refuse_daemonic()
            self._make_images()
        return datapipe

    def _make_images(self) -> None:
        """Pickle what the processes run: now, so that all get the same, and an error comes where the loader is made."""
        plan = self.plan
        self._graph = _image_of(plan.shard_nodes, self._graphs.branches, self._init_fn, self._reset_fn, self._policy)
        if plan.dispatch is not None:
            self._dispatch = _image_of(plan.dispatch_nodes, plan.dispatch, self._policy)

    def explain(self) -> str:
        shards, workers = self.default_num_shards, min(self._num_workers, self.default_num_shards)
        where = f"{shards} shards in {workers} worker processes ({self._context.get_start_method()})"
        if not workers:
            where = f"in this process, {shards} shard{'s' if shards > 1 else ''}"
        if not workers:
            return draw(self.plan, where, "in this process", self._appended())
        return draw(self.plan, where, "in this process", self._appended(), "once, in a dispatcher process")

    @property
    def measuring(self) -> bool:
        return self._wants_nodes

    @measuring.setter
    def measuring(self, value: bool) -> None:
        self._wants_nodes = value
        if self._workers is not None:
            self._workers.measure_nodes(value)

    def _told(self) -> ServiceFigures:
        stats, workers = self.stats(), self._workers
        return replace(
            self._last_figures if workers is None else workers.figures(),
            workers=min(self._num_workers, self.default_num_shards) if workers is None else workers.num_workers,
            restarts=stats.restarts,
            longest_dispatch_buffer=stats.longest_dispatch_buffer,
        )

    def initialize_iteration(self, start: EpochStart) -> NodeIterator[Any]:
        if self._num_workers:
            _refuse_daemonic()
        stream = super().initialize_iteration(start)  # first: it may warn, and a warning be an error
        if self._num_workers:
            # Here, in the caller's thread, and not in the one that will pull: the processes outlive that.
            self._workers_for(start).supervisor.start()
        return stream

    def finalize_iteration(self) -> None:
        if self._workers is None:
            return
        if self._workers.usable:
            self._workers.end_epoch()
        else:
            self._end_workers()

    def finalize(self) -> None:
        images = (self._graph, self._dispatch)
        self._graph = self._dispatch = None
        with ExitStack() as stack:
            for image in images:
                if image is not None:
                    stack.callback(image.close)
            stack.callback(self._end_workers)

    def _end_workers(self) -> None:
        workers, self._workers, self._places = self._workers, None, None
        if workers is not None:
            self._earlier_restarts = workers.supervisor.restarts
            self._earlier_longest = max(self._earlier_longest, workers.supervisor.longest_backlog)
            self._last_figures = workers.figures()
            workers.close()

    def _main_root(self, root: DataPipe) -> DataPipe:
        if self._device is not None:
            return ToDevice.with_options(root, self._device, self._device_options)  # type: ignore[arg-type]
        staged = any(isinstance(node, ToDevice) for node in self.plan.main_nodes)
        if self._num_workers and self._main_prefetch_cnt and self.plan.main_nodes and not staged:
            return Prefetcher(root, self._main_prefetch_cnt)  # type: ignore[arg-type]
        return root

    def _threads_in_main(self) -> bool:
        return self._num_workers > 0

    def _start_shards(self, start: EpochStart, positions: list[ShardPosition]) -> ShardProvider:
        if not self._num_workers:
            return self._start_local_shards(start, positions)
        workers = self._workers_for(start)
        workers.begin_epoch(start, positions)
        return _Epoch(workers, self._wait_s)

    def _workers_for(self, start: EpochStart) -> Workers:
        """The workers for this epoch; other ones than before only if a loaded state brought another shard count."""
        most = min(self._num_workers, len(start.shards))
        if self._workers is not None and (self._workers.most != most or not self._workers.usable):
            self._end_workers()
        if self._workers is None:
            if most < self._num_workers:
                _log.warning("starting %d of %d workers: this process has %d shards", most, self._num_workers, most)
            if self._graph is None:  # it was shut down before
                self._make_images()
            self._workers = self._new_workers(most)
        return self._workers

    def _new_workers(self, most: int) -> Workers:
        from reading_services.processes.places import ProcessPlaces, Section
        from reading_services.workers import Workers

        plan = self.plan
        assert self._graph is not None
        shards, dispatched = Section(self._graph, _numbered_names(*self._graphs.branches)), None
        if plan.dispatch is not None:
            assert self._dispatch is not None
            dispatched = Section(self._dispatch, _numbered_names(plan.dispatch))
        self._places = ProcessPlaces(self._context, shards, dispatched, silent_s=self._silent_s)
        workers = Workers(
            self._places,
            most,
            self._limits,
            method=self._context.get_start_method(),
            budget=self._budget,
            dispatch_branch=-1 if plan.dispatch is None else plan.dispatch_branch,
            restarts=self._earlier_restarts,
        )
        workers.measure_nodes(self._wants_nodes)
        workers.supervisor.uneven = any(map(thins, plan.shard_nodes))
        return workers


class _Epoch(ShardProvider):
    """The shards of one epoch, as the workers produce them."""

    def __init__(self, workers: Workers, wait_s: float | None) -> None:
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


def _numbered_names(*roots: DataPipe) -> dict[int, str]:
    """The names of a section's nodes by the numbers that a process notes."""
    numbers = Context.for_graph(*roots, seed=0).numbers
    return {numbers[id(node)]: node_name(node) for root in roots for node in walk(root) if id(node) in numbers}


def _refuse_daemonic() -> None:
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"{multiprocessing.current_process().name} is a daemonic process, which may have no children, so no worker "
            "can be started here: use num_workers=0 with num_shards=... (the stream is the same), or start this "
            "process with daemon=False. Workers of torch's DataLoader and of pools are daemonic"
        )


def _image_of(nodes: tuple[DataPipe, ...], graphs: Any, *others: Any) -> GraphImage:
    """Pickle the shard section and the functions once. Raises: NotSerializableError, naming the culprit."""
    try:
        return GraphImage.of(graphs, *others)
    except Exception as error:
        for node in nodes:  # inputs first: the first that fails is the culprit
            alone = with_inputs(node, lambda _: cast("DataPipe", _Placeholder()))
            if (what := what_fails(vars(alone).items())) is not None:
                text = f"{node_name(node)} cannot be sent to a worker process: {what}"
                raise NotSerializableError(text) from error
        raise NotSerializableError(
            f"worker_init_fn, worker_reset_fn or policy cannot be sent to a worker process ({error}): keep open files, "
            "locks and connections out of what they refer to"
        ) from error


class _Placeholder:
    """Stands for a node's input while the node alone is being pickled."""
