"""What ``worker_init_fn`` and ``worker_reset_fn`` are told about where they run."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerInfo"]


@dataclass(frozen=True)
class WorkerInfo:
    """``num_workers`` is the number of shards and ``worker_id`` the shard's index.

    With the default of one shard a worker these are the worker processes, as in torchdata. A process that hosts several
    shards calls the functions once for each, so that the stream does not depend on the number of processes.
    """

    num_workers: int
    worker_id: int
