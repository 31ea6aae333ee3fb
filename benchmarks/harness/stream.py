"""Measure how fast a loader delivers: first every item of a short pass is checked, then a long pass is timed.

Runs in the measured process. Imports the harness only.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.measure import Meter, pss_bytes

__all__ = ["Reader", "WrongData", "check_pass", "measure_stream"]

WARM_UP_S = 0.4
_STRIDE_S = 0.004  # between two looks at the clock


class WrongData(Exception):
    """A loader delivered something that it should not have: its figures do not count."""


def check_pass(loader: Iterable[Any], check: Callable[[Any], Iterable[int]], expected: Counter[int]) -> None:
    """Run one pass; ``check`` says which samples an item holds, and raises WrongData if their content is wrong.

    Raises: WrongData if the samples are not exactly the ``expected`` ones; their order is each loader's own.
    """
    seen: Counter[int] = Counter()
    for item in loader:
        seen.update(check(item))
    if seen != expected:
        lost, extra = expected - seen, seen - expected
        raise WrongData(
            f"{lost.total()} of {expected.total()} samples were lost ({sorted(lost)[:5]} ...), "
            f"{extra.total()} too many ({sorted(extra)[:5]} ...)"
        )


def measure_stream(
    peer: ModuleType,
    job: Job,
    seconds: float,
    *,
    check: Callable[[Any], Iterable[int]],
    check_count: int,
    ids: Callable[[int], Counter[int]],
    consume: Callable[[Any], object] | None = None,
) -> dict[str, Any]:
    """Check a pass over ``check_count`` samples, then time ``seconds`` of a long one in its steady state.

    ``ids(count)`` is what a pass over ``count`` samples must hold. ``consume`` is done with each delivered item.
    """
    short = peer.Loader(replace(job, count=check_count))
    check_pass(short, check, ids(check_count))
    short.close()
    del short

    loader = peer.Loader(job)
    stream = iter(loader)
    reader = Reader(stream, job.deliveries, consume)
    reader.read_for(WARM_UP_S)
    before, meter, started = reader.delivered, Meter(), time.perf_counter()
    reader.read_for(seconds)
    wall_s = time.perf_counter() - started
    usage = meter.read(wall_s)
    deliveries = reader.delivered - before
    samples = deliveries * (job.batch_size or 1)
    pss = pss_bytes()
    for _ in check(reader.last):
        pass
    result = {
        "samples_per_s": samples / wall_s,
        "bytes_per_s": deliveries * job.item_bytes / wall_s,
        "deliveries": deliveries,
        "wall_s": wall_s,
        "cpu_s": usage.cpu_s,
        "cpu_us_per_sample": usage.cpu_s / samples * 1e6,
        "others": usage.others,
        "pss_mb": pss / 1e6,
    }
    reader.last = None
    result["close"] = loader.close  # done by the caller, after the figures are safe
    return result


class Reader:
    """Reads a stream in strides, so that counting and the clock cost nothing per item."""

    def __init__(self, stream: Iterator[Any], total: int, consume: Callable[[Any], object] | None) -> None:
        self.stream = stream
        self.left = total
        self.consume = consume
        self.delivered = 0
        self.last: Any = None
        self._stride = 1

    def read_for(self, seconds: float) -> None:
        """Read for about that long. Raises: WrongData if the stream ends before it should."""
        started = now = time.perf_counter()
        while now - started < seconds:
            self._read_stride()
            before, now = now, time.perf_counter()
            if now - before < _STRIDE_S / 2:
                self._stride *= 2
            elif now - before > _STRIDE_S * 4 and self._stride > 1:
                self._stride //= 2

    def _read_stride(self) -> None:
        if self.left < self._stride:
            raise RuntimeError("the timed pass came to its end: give the workload a larger count")
        item = self.last = None
        if self.consume is None:
            for item in itertools.islice(self.stream, self._stride):  # noqa: B007
                pass
        else:
            consume = self.consume
            for item in itertools.islice(self.stream, self._stride):
                consume(item)
        if item is None:
            raise WrongData(f"the stream ended after {self.delivered} of its deliveries")
        self.last = item
        self.left -= self._stride
        self.delivered += self._stride
