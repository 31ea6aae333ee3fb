"""Workers of a ``DataLoader`` that ``reading_services`` runs: what they are given to make, and where they run.

Runs in the user's process.
"""

from __future__ import annotations

import signal
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchpipe.data.assigned import AssignedBatches, ending_what_fails, lane_cursors
from torchpipe.data.fetch import Fetch
from torchpipe.data.nodes import FetchAssigned, InitWorker
from torchpipe.data.order.sampling import Order
from torchpipe.data.sharing import NO_WINDOW, SharedBatches
from torchpipe.data.workers import WorkerEngine, WorkerMethod
from torchpipe.device.backend import CpuBackend
from torchpipe.errors import WorkerDiedError
from torchpipe.execution.limits import Restart, WorkerLimits
from torchpipe.execution.reading_service import EpochStart
from torchpipe.node.iterator import is_stateful
from torchpipe.node.validate import check_choice
from torchpipe.rings import from_ring
from torchpipe.state import SnapshotPolicy

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["begin_assigned", "check_worker_method", "iterable_service", "torch_words"]

_NO_LIMIT = 1 << 62  # bytes: torch's ``prefetch_factor`` counts batches, whatever their size


def _engine() -> WorkerEngine:
    """The one that there is. Here alone torchpipe reaches for reading_services, and needs it for workers alone."""
    engine: WorkerEngine = import_module("reading_services.datasets").Engine()
    return engine


def begin_assigned(
    loader: DataLoader[Any], order: Order, fetch: Fetch, epoch: int, position: dict[str, Any] | None
) -> AssignedBatches:
    """The batches of ``order``, made by the loader's workers: those that persist, or new ones."""
    lanes = loader.num_workers
    graph = FetchAssigned(fetch, as_torch=loader.worker_seeding == "torch", base_seed=order.base_seed)
    position = position or {}
    carried = loader._carried.lanes
    kept = None if carried is None else [cursor.to_state() for cursor in carried]
    cursors = lane_cursors(lanes, position.get("lanes", kept))
    pool = loader._pool
    if pool is None:
        engine = _engine()
        pool = engine.dealing(
            graph,
            lanes,
            _method_of(loader, engine),
            init_fn=InitWorker(
                loader.worker_init_fn,
                fetch.dataset,
                order.base_seed,
                # Else a batch depends on its indices alone, and all in a process read one dataset
                copies=(loader._budget is not None or _may_share(loader))
                and (is_stateful(fetch.dataset) or loader.worker_init_fn is not None),
            ),
            limits=_limits(loader, NO_WINDOW if fetch.by_sample else loader.prefetch_factor or 1),
            # With each batch, so that what was dealt before one is never needed again; without a state, never
            policy=SnapshotPolicy.never if graph.stateless else partial(SnapshotPolicy, every=1),
            steps=2,  # reading and collating
            budget=loader._budget,
        )
        if loader.persistent_workers:
            loader._pool = pool
    pool.measure_nodes(loader.measuring)
    start = EpochStart(seed=order.base_seed, epoch=epoch, num_shards=lanes)
    with ending_what_fails(pool, keeps=loader.persistent_workers):
        pool.begin(start, cursors, stateless=graph.stateless, again=position.get("again"))
        if fetch.by_sample:
            return SharedBatches(loader, order, pool, position)
        return AssignedBatches(loader, order, pool, position, None if graph.stateless else cursors)


def iterable_service(loader: DataLoader[Any], shards: int, dataset: Any, base_seed: int) -> Any:
    """The reading service for the loader's workers over an iterable dataset."""
    engine = _engine()
    return engine.streaming(
        min(loader.num_workers, shards),
        _method_of(loader, engine),
        num_shards=shards,
        init_fn=InitWorker(
            loader.worker_init_fn,
            dataset,
            base_seed,
            copies=shards > loader.num_workers or bool(loader.autotune) or _may_share(loader),
        ),
        limits=_limits(loader, loader.prefetch_factor or 1),
        wait_s=loader.timeout or None,
        autotune=loader.autotune,
    )


def _limits(loader: DataLoader[Any], window: int) -> WorkerLimits:
    return WorkerLimits(
        window=window,
        window_bytes=_NO_LIMIT,
        deaths=Restart.of(loader.on_worker_death),
        torch_wording=True,
    )


def _may_share(loader: DataLoader[Any]) -> bool:
    """True if several of the loader's workers may come to be in one process: only its own are one for each."""
    return loader.worker_method != "multiprocessing"


def _method_of(loader: DataLoader[Any], engine: WorkerEngine) -> WorkerMethod:
    """The method of the loader's workers: ``worker_method``, or the one that its word stands for.

    Processes start as in torch's loader: as the platform has it; or, where batches go to an accelerator, in the way
    that is safe beside it.
    """
    method: Any = loader.worker_method
    if method == "ray":
        method = from_ring("reading_services.ray:RayWorkers")()
    elif method == "multiprocessing":
        context: Any = loader.multiprocessing_context
        if loader._start_method_named:
            context = context.get_start_method()
        on_device = context is None and not isinstance(loader._device_backend, CpuBackend | None)
        method = engine.processes(context, on_device=on_device)
    return method  # type: ignore[no-any-return]


def check_worker_method(worker_method: Any) -> None:
    """Raises: ValueError or TypeError for what does not say where workers run."""
    if isinstance(worker_method, str):
        check_choice("worker_method", worker_method, ("multiprocessing", "thread", "ray"))
    elif not _engine().takes(worker_method):
        raise TypeError(
            f"worker_method must be 'multiprocessing', 'thread', 'ray' or a RayWorkers(...), got {worker_method!r}"
        )


def torch_words(error: WorkerDiedError) -> WorkerDiedError:
    """``error`` with the text that torch's loader has for it, which tools look for."""
    code = error.exitcode
    if code is not None and code < 0:
        text = f"DataLoader worker (pid {error.pid}) is killed by signal: {signal.strsignal(-code)}. "
    else:
        text = f"DataLoader worker (pid(s) {error.pid}) exited unexpectedly. "
    raised = WorkerDiedError(f"{text}(on_worker_death='restart' would replace it, and go on with the same batches)")
    raised.pid, raised.exitcode = error.pid, code
    return raised
