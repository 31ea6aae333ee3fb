"""Worker processes for a ``DataLoader``: what of ``reading_services`` they need, loaded when the first one is started.

Runs in the user's process.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from torchpipe.data.assigned import AssignedBatches, ending_what_fails, lane_positions
from torchpipe.data.fetch import Fetch
from torchpipe.data.nodes import FetchAssigned, InitWorker
from torchpipe.data.order.sampling import Order
from torchpipe.data.sharing import NO_WINDOW, SharedBatches
from torchpipe.device.cpu import CpuBackend
from torchpipe.errors import WorkerDiedError
from torchpipe.execution.reading_service import EpochStart
from torchpipe.node.iterator import is_stateful
from torchpipe.node.validate import check_choice
from torchpipe.state import SnapshotPolicy

if TYPE_CHECKING:
    from torchpipe.data.loader import DataLoader

__all__ = ["begin_assigned", "check_worker_method", "hosts_of", "iterable_service", "torch_words"]

_NO_LIMIT = 1 << 62  # bytes: torch's ``prefetch_factor`` counts batches, whatever their size


def begin_assigned(
    loader: DataLoader[Any], order: Order, fetch: Fetch, epoch: int, position: dict[str, Any] | None
) -> AssignedBatches:
    """The batches of ``order``, made by the loader's workers: those that persist, or new ones."""
    from reading_services.datasets import DealingWorkers, WorkerLimits

    lanes, hosts = loader.num_workers, hosts_of(loader)
    graph = FetchAssigned(fetch, as_torch=loader.worker_seeding == "torch", base_seed=order.base_seed)
    position = position or {}
    kept = None if loader._lanes is None else [cursor.to_state() for cursor in loader._lanes]
    loader._lanes = None
    positions = lane_positions(lanes, position.get("lanes", kept))
    pool = loader._pool
    if pool is None:
        pool = DealingWorkers(
            graph,
            lanes,
            None if hosts is not None else _start_method(loader),
            init_fn=InitWorker(
                loader.worker_init_fn,
                fetch.dataset,
                order.base_seed,
                # Else a batch depends on its indices alone, and all in a process read one dataset
                persists=loader.persistent_workers,
                copies=(loader._budget is not None or hosts is not None)
                and (is_stateful(fetch.dataset) or loader.worker_init_fn is not None),
            ),
            limits=WorkerLimits(
                window=NO_WINDOW if fetch.by_sample else loader.prefetch_factor or 1,
                window_bytes=_NO_LIMIT,
                max_deaths=loader.max_deaths,
                max_restarts=0 if loader.on_worker_death == "raise" else loader.max_restarts,
                torch_wording=True,
            ),
            # With each batch, so that what was dealt before one is never needed again; without a state, never
            policy=SnapshotPolicy.never if graph.stateless else partial(SnapshotPolicy, every=1),
            steps=2,  # reading and collating
            budget=loader._budget,
            where=hosts,
        )
        if loader.persistent_workers:
            loader._pool = pool
    pool.measure_nodes(loader.measuring)
    start = EpochStart(seed=order.base_seed, epoch=epoch, num_shards=lanes)
    with ending_what_fails(pool, keeps=loader.persistent_workers):
        pool.begin(start, positions, stateless=graph.stateless, again=position.get("again"))
        if fetch.by_sample:
            return SharedBatches(loader, order, pool, position)
        return AssignedBatches(loader, order, pool, position, None if graph.stateless else positions)


def iterable_service(loader: DataLoader[Any], shards: int, dataset: Any, base_seed: int) -> Any:
    """The reading service for the loader's workers over an iterable dataset."""
    from reading_services.datasets import TimedRayReadingService, TimedReadingService

    hosts, workers = hosts_of(loader), min(loader.num_workers, shards)
    make: Any = TimedReadingService if hosts is None else TimedRayReadingService
    return make(
        workers,
        _start_method(loader) if hosts is None else hosts,
        wait_s=loader.timeout or None,
        num_shards=shards,
        worker_prefetch_cnt=loader.prefetch_factor or 1,
        worker_prefetch_bytes=_NO_LIMIT,
        main_prefetch_cnt=0,
        worker_init_fn=InitWorker(
            loader.worker_init_fn,
            dataset,
            base_seed,
            persists=loader.persistent_workers,
            copies=shards > loader.num_workers or bool(loader.autotune) or hosts is not None,
        ),
        max_deaths=loader.max_deaths,
        max_restarts=0 if loader.on_worker_death == "raise" else loader.max_restarts,
        policy=SnapshotPolicy,
        autotune=loader.autotune,
    )


def hosts_of(loader: DataLoader[Any]) -> Any:
    """The ``RayWorkers`` that say where the loader's workers run; None: in processes of this machine.

    Raises: ImportError without Ray; ValueError or ConnectionError if its cluster cannot be had.
    """
    hosts: Any = loader.worker_method
    if hosts == "multiprocessing":
        return None
    if hosts == "ray":
        from reading_services.datasets import RayWorkers

        hosts = RayWorkers()
    hosts.connect()
    return hosts


def check_worker_method(worker_method: Any) -> None:
    """Raises: ValueError or TypeError for what does not say where workers run."""
    from reading_services.datasets import RayWorkers

    if isinstance(worker_method, str):
        check_choice("worker_method", worker_method, ("multiprocessing", "thread", "ray"))
    elif not isinstance(worker_method, RayWorkers):
        raise TypeError(
            f"worker_method must be 'multiprocessing', 'thread', 'ray' or a RayWorkers, got {worker_method!r}"
        )


def _start_method(loader: DataLoader[Any]) -> Any:
    """As torch's loader: the platform's default. Where batches go to an accelerator, the one that is safe beside it."""
    from reading_services.datasets import default_start_method

    context: Any = loader.multiprocessing_context
    if context is None and isinstance(loader._device_backend, CpuBackend | None):
        return default_start_method()
    return context.get_start_method() if loader._start_method_named else context


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
