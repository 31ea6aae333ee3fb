"""SPDL with small items gathered by hand: lists of 256 in the worker, flattened by the consumer. For P1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from spdl.pipeline import iterate_in_subprocess

from benchmarks.harness.job import Job
from benchmarks.peers._shards import ShardStream, one_torch_thread
from benchmarks.peers.spdl_ import AHEAD, in_turn

__all__ = ["CHUNK", "Loader"]

CHUNK = 256


class _Chunks:
    def __init__(self, stream: ShardStream) -> None:
        self.stream = stream

    def __call__(self) -> _Chunks:
        return self

    def __iter__(self) -> Iterator[list[Any]]:
        items = iter(self.stream)
        while chunk := list(itertools.islice(items, CHUNK)):
            yield chunk


class Loader:
    def __init__(self, job: Job) -> None:
        self.sources = [
            iterate_in_subprocess(
                _Chunks(ShardStream(job, shard, job.workers)),
                buffer_size=AHEAD,
                initializer=one_torch_thread,
                mp_context=job.start_method,
            )
            for shard in range(job.workers)
        ]

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(in_turn(self.sources))

    def close(self) -> None:
        self.sources.clear()
