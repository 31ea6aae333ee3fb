"""SPDL: ``iterate_in_subprocess`` for each worker, read in turn; items travel through a ``multiprocessing.Queue``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spdl.pipeline import iterate_in_subprocess

from benchmarks.harness.job import Job
from benchmarks.peers._shards import ShardStream, one_torch_thread

__all__ = ["AHEAD", "Loader", "in_turn"]

AHEAD = 10  # items that each process may be ahead, as torchpipe's default; the library's own default is 3


def in_turn(sources: list[Iterable[Any]]) -> Iterator[Any]:
    """One item of each source after the other; a source that has ended drops out."""
    streams = [iter(source) for source in sources]
    while streams:
        for stream in list(streams):
            try:
                item = next(stream)
            except StopIteration:
                streams.remove(stream)
                continue
            yield item


class Loader:
    """``arena(job)`` makes the shared memory for one process, if any."""

    def __init__(self, job: Job) -> None:
        self.sources = [
            iterate_in_subprocess(
                ShardStream(job, shard, job.workers),
                buffer_size=AHEAD,
                initializer=one_torch_thread,
                mp_context=job.start_method,
                arena=self.arena(job),
            )
            for shard in range(job.workers)
        ]

    def arena(self, job: Job) -> Any:
        return None

    def __iter__(self) -> Iterator[Any]:
        return in_turn(self.sources)

    def close(self) -> None:
        self.sources.clear()
