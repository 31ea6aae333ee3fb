"""P8c: the device stage on CUDA. Images made in workers, steps of real work on the GPU, each waited for.

Batches of 128 uint8 images, 19 MB. One pass: every byte of its first batches is checked, on the device; then, three
times in turn, batches are taken as fast as they come, and with a step of about 10 ms for each. Runs in the measured
process.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData
from benchmarks.workloads import p3_images, p11_made_images

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P8c step time on CUDA, over that of the step alone"
UNIT = "step_ratio"
PEERS = ["cuda_torchpipe", "cuda_torchpipe_pinned", "cuda_pinned", "cuda_naive"]
BATCH = 128
STEP_S = 0.010
_CHECKED, _WARM_UP, _ROUNDS = 16, 8, 3


def make(index: int) -> dict[str, Any]:
    return {"image": p11_made_images.make(index), "index": index}


class _Step:
    """Looks at each image and multiplies matrices, ``times`` so that it takes about ``STEP_S``."""

    def __init__(self, device: str) -> None:
        side = 4096 if device == "cuda" else 64
        self._matrix = torch.full((side, side), 1 / side, device=device, dtype=torch.bfloat16)
        self._times = 1
        once = min(_time_of(self, {"image": torch.zeros(1, 3, 64, 64, device=device)}) for _ in range(5))
        self._times = max(1, int(STEP_S / once)) if device == "cuda" else 1

    def __call__(self, batch: dict[str, Any]) -> float:
        product = self._matrix
        for _ in range(self._times):
            product = product @ self._matrix
        return float(batch["image"][:, :, ::32, ::32].float().mean() + product[0, 0])


def _time_of(step: _Step, batch: dict[str, Any]) -> float:
    started = time.perf_counter()
    step(batch)
    return time.perf_counter() - started


def run(peer: ModuleType, seconds: float, *, device: str = "cuda", workers: int = 8) -> dict[str, Any]:
    """``step_ratio``: wall time of a step with its batch, over that of the same step on a batch that is there already;
    ``gb_per_s``: what arrives where nothing is done with it. Medians of three rounds."""
    if device == "cuda" and not torch.cuda.is_available():
        raise Unsupported("no CUDA here")
    p3_images.make(0)  # the images, before any fork
    job = Job(count=BATCH * 1_000_000, make=make, batch_size=BATCH, workers=workers)
    loader = peer.Loader(job, device)
    stream = iter(loader)
    step = _Step(device)
    present = _check(stream, device)
    alone_s = statistics.median(_time_of(step, present) for _ in range(20))
    rates, ratios, meter = [], [], Meter()
    for _ in range(_ROUNDS):
        rates.append(_rate(stream, seconds, _glance))
        ratios.append(1 / _rate(stream, seconds, step) / alone_s)
    return {
        "step_ratio": statistics.median(ratios),
        "gb_per_s": statistics.median(rates) * p3_images.make(0).numel() * BATCH / 1e9,
        "step_ms": alone_s * 1e3,
        "step_ratio_of_round": ratios,
        "batches_per_s_of_round": rates,
        "others": meter.read().others,
        "close": loader.close,
    }


def _check(stream: Iterator[Any], device: str) -> dict[str, Any]:
    """The last of the batches that were checked."""
    for number, batch in enumerate(itertools.islice(stream, _CHECKED)):
        wanted = range(number * BATCH, (number + 1) * BATCH)
        images = torch.from_numpy(np.stack([p3_images.make_array(index) for index in wanted]) + np.uint8(1))
        if batch["image"].device.type != device or batch["index"].tolist() != list(wanted):
            raise WrongData(
                f"batch {number} is on {batch['image'].device} and has the samples {batch['index'].tolist()}"
            )
        if not torch.equal(batch["image"], images.to(device)):
            raise WrongData(f"batch {number} has other images than were made")
    return batch  # type: ignore[no-any-return]


def _glance(batch: dict[str, Any]) -> torch.Tensor:
    return batch["image"][0, 0, 0, :2].sum()


def _rate(stream: Iterator[Any], seconds: float, use: Callable[[dict[str, Any]], Any]) -> float:
    """Batches a second, after a warm-up; the GPU has done all of its work when the clock is read."""
    for batch in itertools.islice(stream, _WARM_UP):
        float(use(batch))
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        last = use(next(stream))
        count += 1
    float(last)
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p8c"])
