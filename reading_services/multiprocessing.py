"""``MultiProcessingReadingService``: shards run in worker processes that may die at any moment.

Runs in the main process.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.context import BaseContext
from typing import Any

from reading_services.hosted import HostedReadingService, worker_limits
from reading_services.processes.start_method import start_method
from reading_services.processes.workplace import Processes
from torchpipe.execution.figures import ServiceStats
from torchpipe.execution.limits import OnDeath
from torchpipe.execution.shard import InitFn, ResetFn
from torchpipe.machine import Budget
from torchpipe.node.validate import check_count
from torchpipe.state import SnapshotPolicy

__all__ = ["MultiProcessingReadingService", "ServiceStats"]


class MultiProcessingReadingService(HostedReadingService):
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
        worker_init_fn: ``(datapipe, worker_info) -> datapipe``, once for each shard, before its first item, in the
            process that hosts it. A process may host several shards (``num_shards``, ``autotune``): what is a shard's
            goes into its datapipe, since a module's global is that of the last shard in the process.
        worker_reset_fn: ``(datapipe, worker_info, seed_generator) -> datapipe``, for each shard and epoch.
        worker_prefetch_bytes: bytes that each shard may run ahead of the consumer, if that is more than two messages;
            give more where some batches take much longer to make than others, and memory allows it.
        num_shards: the number of shards that the stream is divided into, fixed for the run; default ``num_workers``.
            The stream depends on it, but not on ``num_workers``.
        device: ``"xla"``, ``"cuda"``, ``"cpu"``: appends a stage that moves batches there ahead of the consumer. A
            :class:`~torchpipe.device.DeviceOptions` says how: ``DeviceOptions("xla", device_prefetch=4)``.
        timeout: seconds without a sign of life, or of work in which nothing comes, after which a worker is taken for
            stopped, killed and replaced, as ``on_worker_death`` says.
            The time begins anew with each item that a worker hands out, also with those that are made again after a
            restart; items that a filter drops are part of the next one's. Choose it longer than any item takes, than
            what comes before the first one (unpickling, worker_init_fn, opening files), and than any native call of
            yours that keeps the interpreter lock. None: never.
        on_worker_death: ``"restart"`` replaces a worker that dies, and gives an item up at which three have died; a
            ``reading_services.Restart`` has other limits; ``"raise"``: no worker is replaced, WorkerDiedError.
        policy: how often snapshots are taken; the default costs about 1 % of the time.
        autotune: choose by measurement how many processes, at most ``num_workers``, host the shards, and how far they
            run ahead, while the stream goes on and stays the same. True, or a :class:`~torchpipe.stats.Budget`.
            ``loader.stats().events`` and the logger ``torchpipe`` say what was chosen.

    Raises: ValueError or TypeError for arguments out of range, ImportError for a device whose library is missing;
    GraphError and NotSerializableError, naming the node, when a loader is built with it.
    """

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
        timeout: float | None = None,
        on_worker_death: OnDeath = "restart",
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        autotune: bool | Budget = False,
    ) -> None:
        self._worker_prefetch_cnt = check_count("worker_prefetch_cnt", worker_prefetch_cnt, at_least=0)
        super().__init__(
            Processes(start_method(multiprocessing_context, on_device=device is not None)),
            num_workers,
            num_shards,
            worker_init_fn,
            worker_reset_fn,
            policy,
            limits=worker_limits(worker_prefetch_cnt, worker_prefetch_bytes, on_worker_death),
            main_prefetch_cnt=main_prefetch_cnt,
            device=device,
            timeout=timeout,
            autotune=autotune,
        )

    @property
    def worker_prefetch_cnt(self) -> int:
        return self._worker_prefetch_cnt
