"""Scaling over item sizes: numpy arrays of 8 B to 64 MB that lie in memory, delivered one by one by two workers.

Runs in the measured process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "item sizes of 8 B to 64 MB"
UNIT = "bytes_per_s"
PEERS = ["torchpipe", "torch", "spdl", "spdl_arena"]
_POOL = 4


@functools.cache
def _arrays(size: int) -> list[Any]:
    arrays = [np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8) for number in range(_POOL)]
    for number, array in enumerate(arrays):
        array[0] = number
    return arrays


def make(size: int, index: int) -> Any:
    # A new object each time: the same array several times in one message would be sent once.
    return _arrays(size)[index % _POOL].view()


def check(size: int, item: Any) -> Iterable[int]:
    array = np.asarray(item)  # torch's DataLoader makes tensors of arrays
    number = int(array[0])
    if number >= _POOL or not np.array_equal(array, _arrays(size)[number]):
        raise WrongData(f"an array of {array.size} bytes that calls itself {number} differs from it")
    return (number,)


def run(peer: ModuleType, seconds: float, *, size: int = 8) -> dict[str, Any]:
    _arrays(size)
    job = Job(count=40_000_000, make=functools.partial(make, size), item_bytes=size)
    return measure_stream(
        peer,
        job,
        seconds,
        check=functools.partial(check, size),
        check_count=16,
        ids=lambda count: Counter(index % _POOL for index in range(count)),
    )
