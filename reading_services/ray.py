"""``RayReadingService``: shards run in Ray actors, on any node of a cluster, that may go away at any moment.

Runs in the driver: the process that iterates the loader.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from reading_services.engine.workers import Section, WorkerPool, Workplace
from reading_services.hosted import HostedReadingService, worker_limits
from torchpipe.errors import NotSerializableError
from torchpipe.execution.limits import OnDeath
from torchpipe.execution.shard import InitFn, ResetFn
from torchpipe.machine import Budget
from torchpipe.node.validate import check_count
from torchpipe.state import SnapshotPolicy
from torchpipe.state.pickling import ImagePickler

__all__ = ["RayReadingService", "RayWorkers"]

_SHARED = (
    "is, or refers to, a tensor in shared memory. Only processes of one machine share it: an actor would have a copy, "
    "which what you write to yours later does not reach. If it does not change, give tensor.clone(); to tell workers "
    "the epoch, set a plain attribute and leave persistent_workers=False, so that each epoch sends the dataset anew"
)


@dataclass(frozen=True, kw_only=True)
class RayWorkers(Workplace):
    """Ray actors as workers: ``worker_method=RayWorkers(num_cpus=2)`` of a ``DataLoader`` or ``RayReadingService``.

    Args:
        num_cpus: CPUs that each worker asks for (Ray counts them; it does not enforce them).
        memory: bytes of memory that each worker asks for, counted in the same way; None: it asks for none.
        resources: custom resources that each worker asks for, e.g. ``{"decoder": 1}``.
        label_selector: labels of the nodes that workers may run on, as Ray has them, e.g. ``{"pool": "cpu"}``.
        placement_group: a placement group that workers run in.
        runtime_env: Ray's runtime environment for the workers, e.g. ``{"pip": ["pillow"]}``. Local directories and
            modules go to the cluster with ``ray.init(runtime_env={"working_dir": "."})`` alone.
        address: the cluster to connect to if this process is not connected: ``"auto"`` or ``host:port``. None: the one
            that ``RAY_ADDRESS`` names, else one that runs on this machine, else a new one on this machine.
        start_timeout: seconds after which a worker that has not started, and whose shards nobody else can host, is an
            error that says what is missing.
        rebalance: move shards between workers: from those that have not started or are slow to the others, and to new
            ones. The stream stays the same.

    Raises: ValueError or TypeError for arguments out of range.
    """

    num_cpus: float = 1
    memory: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    placement_group: Any = None
    runtime_env: Mapping[str, Any] | None = None
    address: str | None = None
    start_timeout: float = 120.0
    rebalance: bool = True

    method = "ray"
    worker = "Ray actor"
    kind = "actor"

    def __post_init__(self) -> None:
        for name, least in (("num_cpus", 0.0), ("memory", 1.0), ("start_timeout", 0.001)):
            value = getattr(self, name)
            if name == "memory" and value is None:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not value >= least:
                raise ValueError(f"{name} must be {'positive' if least else '0 or more'}, got {value!r}")
        for name in ("resources", "label_selector"):
            value = getattr(self, name)
            if not isinstance(value, Mapping):
                raise TypeError(f"{name} must be a dict, got {value!r}")
        for key in self.resources:
            if key in ("CPU", "GPU", "memory"):
                raise ValueError(
                    f"resources must not name {key}: give num_cpus and memory; workers that load data need no GPU"
                )
        if self.runtime_env is not None:
            _check_runtime_env(self.runtime_env)

    @property
    def balances(self) -> bool:  # type: ignore[override]
        return self.rebalance

    def check(self) -> None:
        """Connect to the cluster. Raises: ImportError without Ray; ValueError, ConnectionError."""
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise ImportError("workers in Ray actors need Ray: pip install 'ray>=2.60'") from error
        from reading_services.actors.cluster import connect

        connect(self.address)

    def open_pool(
        self, shards: Section, dispatched: Section | None = None, *, silent_s: float | None = None
    ) -> WorkerPool:
        from reading_services.actors.cluster import ActorRequest
        from reading_services.actors.pool import ActorPool

        request = ActorRequest(**{asked.name: getattr(self, asked.name) for asked in fields(ActorRequest)})
        return ActorPool(shards, dispatched, request, silent_s=silent_s, start_timeout_s=self.start_timeout)

    def image(self, *parts: Any) -> bytes:
        """Pickled: functions and classes of the main script by value, since actors do not import it."""
        file = io.BytesIO()
        _ToActors(file, protocol=5).dump(parts)
        return file.getvalue()

    def described(self, workers: int) -> str:
        return f"{workers} Ray actors"


def _check_runtime_env(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"runtime_env must be a dict, got {value!r}")
    modules = value.get("py_modules") or ()
    for name, given in (("working_dir", value.get("working_dir")), *(("py_modules", item) for item in modules)):
        if given is not None and "://" not in str(given):
            raise ValueError(
                f"runtime_env has {given!r} as {name}, which lies on this machine, and Ray copies such folders to the "
                f"cluster in ray.init() alone: call ray.init(runtime_env={{{name!r}: ...}}) before the loader is made"
            )


class RayReadingService(HostedReadingService):
    """Runs each shard's section in a Ray actor, and takes from the shards in turn.

    The stream and its states are those of ``MultiProcessingReadingService`` and of in-process execution: a run can move
    between one process, worker processes and a cluster, in the middle of an epoch. An actor that ends, or whose node
    does, is replaced on another node, and the stream goes on bit for bit. What is dispatched is made in another actor.

    Args:
        num_workers: actors that host shards.
        worker_method: a :class:`RayWorkers`: what each actor asks for, and where.
        worker_prefetch_cnt: messages that each shard may run ahead of the consumer. A message is one item, or as many
            small ones as come within 20 ms and 8 MiB.
        main_prefetch_cnt, worker_init_fn, worker_reset_fn, num_shards, on_worker_death, policy: as
            ``MultiProcessingReadingService`` has them. Give a multiple of ``num_workers`` as ``num_shards``, so that
            shards can be moved between workers.
        worker_prefetch_bytes: bytes that each shard may run ahead, if that is more than two messages. They lie in the
            object store of the driver's node.
        device: of the stage that moves batches there, as there.
        timeout: seconds without an answer after which an actor is killed and replaced; the thread that answers needs
            the interpreter lock now and then. None: never.

    Raises: ValueError or TypeError for arguments out of range; ImportError without Ray; ConnectionError if the cluster
    does not answer; GraphError and NotSerializableError, naming the node, when a loader is built with it.
    """

    def __init__(
        self,
        num_workers: int = 1,
        worker_prefetch_cnt: int = 10,
        main_prefetch_cnt: int = 10,
        worker_init_fn: InitFn | None = None,
        worker_reset_fn: ResetFn | None = None,
        *,
        worker_method: RayWorkers = RayWorkers(),
        worker_prefetch_bytes: int = 32 << 20,
        num_shards: int | None = None,
        device: Any = None,
        timeout: float | None = None,
        on_worker_death: OnDeath = "restart",
        policy: Callable[[], SnapshotPolicy] = SnapshotPolicy,
        autotune: bool | Budget = False,
    ) -> None:
        if not isinstance(worker_method, RayWorkers):
            raise TypeError(f"worker_method must be a RayWorkers(...), got {worker_method!r}")
        super().__init__(
            worker_method,
            check_count("num_workers", num_workers, at_least=1),
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
        worker_method.check()

    def nodes(self) -> dict[str, str]:
        """The name of each actor that has started -> the id of its node."""
        pool: Any = self._pool
        return {} if pool is None else pool.nodes()

    def actors(self) -> list[Any]:
        """The handles of the actors, in the order of their numbers."""
        pool: Any = self._pool
        return [] if pool is None else pool.actors()


class _ToActors(ImagePickler):
    """Raises: NotSerializableError for a tensor in shared memory, of which an actor would have a copy."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and _in_shared_memory(value):
            raise NotSerializableError(_SHARED)
        return super().reducer_override(value)


def _in_shared_memory(tensor: torch.Tensor) -> bool:
    here = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return here and bool(tensor.is_shared())  # type: ignore[no-untyped-call]
