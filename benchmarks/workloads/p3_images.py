"""P3: large batches. uint8 images of 3 x 224 x 224 from memory, 32 in a batch (4.8 MB), delivered.

Runs in the measured process.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["BATCH", "PEERS", "TITLE", "UNIT", "check", "ids", "job", "run"]

TITLE = "P3 images, batches of 4.8 MB"
UNIT = "bytes_per_s"
PEERS = ["torchpipe", "in_process", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]
BATCH = 32
SHAPE = (3, 224, 224)
_POOL = 256


@functools.cache
def _arrays() -> np.ndarray:
    """Images of noise; the first two bytes of each are its number."""
    images = np.random.default_rng(0).integers(0, 256, (_POOL, *SHAPE), dtype=np.uint8)
    flat = images.reshape(_POOL, -1)
    flat[:, 0] = np.arange(_POOL) % 256
    flat[:, 1] = np.arange(_POOL) // 256
    return images


@functools.cache
def _tensors() -> list[torch.Tensor]:
    return list(torch.from_numpy(_arrays()))


def make(index: int) -> torch.Tensor:
    return _tensors()[index % _POOL]


def make_array(index: int) -> np.ndarray:
    return _arrays()[index % _POOL]


def stack(images: list[np.ndarray]) -> np.ndarray:
    return np.stack(images)


def check(batch: Any) -> Iterable[int]:
    array = batch.numpy() if isinstance(batch, torch.Tensor) else batch
    if array.shape != (BATCH, *SHAPE) or array.dtype != np.uint8:
        raise WrongData(f"expected uint8 of {(BATCH, *SHAPE)}, got {array.dtype} of {array.shape}")
    numbers = [int(image[0, 0, 0]) + 256 * int(image[0, 0, 1]) for image in array]
    for number, image in zip(numbers, array):
        if number >= _POOL or not np.array_equal(image, _arrays()[number]):
            raise WrongData(f"an image that calls itself {number} differs from it, or there is none")
    return numbers


def ids(count: int) -> Counter[int]:
    """The numbers of the images that a pass over ``count`` samples holds."""
    return Counter(index % _POOL for index in range(count))


def job(peer: ModuleType) -> Job:
    """The job; a peer that moves only numpy arrays well gets arrays, the others torch tensors."""
    size = BATCH * int(np.prod(SHAPE))
    if getattr(peer, "NUMPY_ONLY", False):
        _arrays()
        return Job(count=10_000_000, make=make_array, batch_size=BATCH, collate=stack, item_bytes=size)
    _tensors()  # before any fork
    return Job(count=10_000_000, make=make, batch_size=BATCH, item_bytes=size)


def run(
    peer: ModuleType, seconds: float, *, workers: int = 2, consume: Callable[[Any], object] | None = None
) -> dict[str, Any]:
    wanted = replace(job(peer), workers=workers)
    checked = wanted.whole(_POOL * 2)
    return measure_stream(peer, wanted, seconds, check=check, check_count=checked, ids=ids, consume=consume)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p3"])
