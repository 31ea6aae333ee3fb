"""grain: the packing of ``packing_grain`` in two processes (spawned, arrays through shared memory)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grain

from benchmarks.harness.job import Job
from benchmarks.peers.packing_grain import packed, to_tensors

__all__ = ["Loader"]


class Loader:
    def __init__(self, job: Job) -> None:
        dataset = packed(job, threads=0, ahead=0)
        options = grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=10)
        self.iterator: Any = iter(dataset.mp_prefetch(options))

    def __iter__(self) -> Iterator[Any]:
        return map(to_tensors, self.iterator)

    def state_dict(self) -> dict[str, Any]:
        return self.iterator.get_state()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iterator.set_state(state)

    def close(self) -> None:
        self.iterator.close()
