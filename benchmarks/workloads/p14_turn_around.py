"""P14: first batch, epoch turn-around and close of loaders that are called as torch's ``DataLoader`` is.

40 batches of P2's samples in an epoch, with workers that are started anew in each epoch, and with persistent ones.
Process start counts, importing the library does not. Runs in the measured process.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import check_pass
from benchmarks.workloads import p2_dict_batches

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P14 first batch, epoch turn-around, close; workers forked"
UNIT = "first_batch_ms"
PEERS = ["dataloader", "torch", "stateful", "spdl_dataloader"]

COUNT = 32 * 40
EPOCHS = 3


def run(peer: ModuleType, seconds: float, *, start_method: str = "fork") -> dict[str, Any]:
    """Of workers that are not persistent, the loader is closed in mid-epoch; of persistent ones, after an epoch."""
    job = replace(p2_dict_batches.job(), count=COUNT, start_method=start_method, persistent=False)
    check_pass((checked := peer.Loader(job)), p2_dict_batches.check, Counter(range(COUNT)))
    checked.close()
    del checked

    meter = Meter()
    first_s, turn_s, close_s = _cycle(peer, job)
    figures = {"first_batch_ms": first_s, "fresh_turn_around_ms": turn_s, "fresh_close_ms": close_s}
    if getattr(peer, "PERSISTENT", True):
        _, turn_s, close_s = _cycle(peer, replace(job, persistent=True))
        figures |= {"turn_around_ms": turn_s, "close_ms": close_s}
    return {name: 1e3 * figure_s for name, figure_s in figures.items()} | {"others": meter.read().others}


def _cycle(peer: ModuleType, job: Job) -> tuple[float, float, float]:
    """Seconds to the first batch, from an epoch's last batch to the next one's first (the median), to close."""
    clock = time.perf_counter
    started = clock()
    loader = peer.Loader(job)
    stream = iter(loader)
    batch = next(stream)
    first_s = clock() - started
    turns = []
    for _ in range(EPOCHS):
        ended = 0.0
        for batch in stream:  # noqa: B007
            ended = clock()
        stream = iter(loader)
        batch = next(stream)
        turns.append(clock() - ended)
    if job.persistent:
        for batch in stream:  # noqa: B007
            pass
    del batch
    closing = clock()
    del stream
    loader.close()
    return first_s, sorted(turns)[len(turns) // 2], clock() - closing


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p14"])
