"""SPDL with a ``SharedMemorySegmentPool`` for each process: zero-copy batches in reused segments."""

from __future__ import annotations

from typing import Any

from spdl.pipeline import SharedMemorySegmentPool

from benchmarks.harness.job import Job
from benchmarks.peers import spdl_

__all__ = ["SEGMENTS", "Loader"]

# Not tuned: 3, 6 and 10 were tried, but never all of them on a quiet machine, so which is best is open.
SEGMENTS = 6


class Loader(spdl_.Loader):
    def arena(self, job: Job) -> Any:
        return SharedMemorySegmentPool(segment_size=job.item_bytes + 65536, count=SEGMENTS)
