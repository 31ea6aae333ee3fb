"""P20: what measuring costs: P1, P2 and P4 with ``loader.measuring`` beside the same without, in turns in one process.

Both loaders have workers of their own. What counts is CPU time for each sample, not the clock: a busy machine slows
both down, and does not make them work more. Runs in the measured process.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import Reader, check_pass
from benchmarks.workloads import p1_small_items, p2_dict_batches, p4_jpeg

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P20 what measuring adds to the CPU time of a sample"
UNIT = "p1_percent"
PEERS = ["torchpipe"]

WARM_UP_CPU_S = 0.4
TURN_S = 0.25
LEAST_TURNS = 6


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    """``seconds`` for each of P1, P2 and P4."""
    meter = Meter()
    p4 = p4_jpeg.job(peer)
    parts = {
        "p1": (p1_small_items.job(), p1_small_items.check, Counter(range(5_000))),
        "p2": (p2_dict_batches.job(), p2_dict_batches.check, Counter(range(3_200))),
        "p4": (p4, p4_jpeg.check, p4_jpeg.ids(p4_jpeg.BATCH * 8)),
    }
    figures: dict[str, Any] = {}
    for name, (job, check, expected) in parts.items():
        checked = peer.Loader(replace(job, count=expected.total()), measure=True)
        check_pass(checked, check, expected)
        if not checked.loader.stats().measured:
            raise Unsupported("nothing was measured")
        checked.close()
        figures[f"{name}_percent"] = 100 * (_ratio(peer, job, seconds) - 1)
    return figures | {"others": meter.read().others}


def _ratio(peer: ModuleType, job: Job, seconds: float) -> float:
    """CPU time of a sample with measuring to that without. Who begins second is often the slower one by some percent,
    whoever it is: the geometric mean of both orders.
    """
    return math.sqrt(math.prod(_in_turns(peer, job, seconds / 2, order) for order in ((False, True), (True, False))))


def _in_turns(peer: ModuleType, job: Job, seconds: float, order: tuple[bool, bool]) -> float:
    """The ratio, over turns that follow each other."""
    sides = [_Side(peer, job, measure) for measure in order]
    for side in sides:
        side.warm_up()
    until, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < until or turn < LEAST_TURNS:
        for side in sides if turn % 2 else sides[::-1]:
            side.read(TURN_S)
        turn += 1
    costs = dict(zip(order, (side.cost_s() for side in sides)))
    for side in sides:
        side.close()
    return costs[True] / costs[False]


class _Side:
    """A loader, what was read of it, and the CPU time that this took: of this process while it is read, and of its
    workers, which also work ahead while the other one is read.
    """

    def __init__(self, peer: ModuleType, job: Job, measure: bool) -> None:
        self._loader = peer.Loader(job, measure=measure)
        self._reader = Reader(iter(self._loader), job.deliveries, None)
        self._reader.read_for(1e-9)  # the first item: the workers are there
        self._workers = [_cpu_clock(pid) for pid in self._loader.loader.reading_service.worker_pids()]
        self._own_s, self._before, self._before_s = 0.0, 0, 0.0
        self.close = self._loader.close

    def warm_up(self) -> None:
        """Until the workers have run for a while: what is timed item by item at first is not what it costs later on."""
        while self._workers_s() < WARM_UP_CPU_S:
            self.read(TURN_S)
        self._own_s, self._before, self._before_s = 0.0, self._reader.delivered, self._workers_s()

    def read(self, seconds: float) -> None:
        began = time.process_time()
        self._reader.read_for(seconds)
        self._own_s += time.process_time() - began

    def cost_s(self) -> float:
        """CPU seconds for each item."""
        return (self._own_s + self._workers_s() - self._before_s) / (self._reader.delivered - self._before)

    def _workers_s(self) -> float:
        return sum(time.clock_gettime(clock) for clock in self._workers)


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of process ``pid``: to the nanosecond, where ``/proc`` counts in ticks (Linux)."""
    return (~pid << 3) | 2


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p20"])
