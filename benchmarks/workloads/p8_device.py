"""P8: the device stage. A source that takes 5 ms a batch, a step that takes 5 ms, on XLA's CPU device.

Both only wait, so that what is measured is the overlap. Runs in the measured process, in the project's own environment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["LOAD_S", "PEERS", "TITLE", "UNIT", "Source", "run"]

TITLE = "P8 step time on XLA, over the longer of load and compute"
UNIT = "step_ratio"
PEERS = ["xla_torchpipe", "xla_mp_device", "xla_naive"]

LOAD_S = 0.005
_WARM_UP = 20


class Source:
    """Batches of float32 (32, 256) filled with their number; each takes ``LOAD_S``."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        import torch

        for number in range(self.count):
            time.sleep(LOAD_S)
            yield torch.full((32, 256), float(number))


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    """``step_ratio``: mean step / 5 ms; ``first_batch_ratio`` and ``worst_gap_ratio``: waiting for a batch / 5 ms."""
    count = _WARM_UP + max(20, int(seconds / LOAD_S))
    loader = peer.Loader(Source(count))
    _check(loader, count)  # the first epoch; the second one is timed, so that no process start is in it
    clock = time.perf_counter
    first_s = 0.0
    gaps: list[float] = []
    meter, measured_from, last = Meter(), 0.0, None
    asked = clock()
    for number, batch in enumerate(loader):
        waited = clock() - asked
        if number == 0:
            first_s = waited
        if number == _WARM_UP:
            meter, measured_from = Meter(), clock()
        if number > _WARM_UP:
            gaps.append(waited)
        last = batch
        time.sleep(LOAD_S)
        asked = clock()
    wall_s = asked - measured_from
    if last is None or float(last.cpu()[0, 0]) != count - 1:
        raise WrongData(f"the last batch should be number {count - 1}, got {last!r}")
    return {
        "step_ratio": wall_s / (count - _WARM_UP) / LOAD_S,
        "first_batch_ratio": first_s / LOAD_S,
        "worst_gap_ratio": max(gaps) / LOAD_S,
        "others": meter.read().others,
        "close": loader.close,
    }


def _check(loader: Iterable[Any], count: int) -> None:
    import torch

    seen = 0
    for batch in loader:
        if batch.device.type != "xla":
            raise WrongData(f"batch {seen} is on {batch.device}, not on the XLA device")
        if not torch.equal(batch.cpu(), torch.full((32, 256), float(seen))):
            raise WrongData(f"batch {seen} has other content than its source: {batch.cpu()!r}")
        seen += 1
    if seen != count:
        raise WrongData(f"{seen} of {count} batches arrived")


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p8"])
