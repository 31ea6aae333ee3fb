"""P5: how long until the first batch, from one epoch to the next, and until everything is closed. The batches of P2.

Process start of the workers counts here; importing the library does not. Runs in the measured process.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import check_pass
from benchmarks.workloads import p2_dict_batches, p2n_numpy_batches

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P5 first batch, epoch turn-around, close"
UNIT = "first_batch_ms"
PEERS = ["torchpipe", "torch", "stateful", "nodes", "spdl", "spdl_arena", "grain", "mprs09"]

COUNT = 32 * 40
EPOCHS = 4


def run(peer: ModuleType, seconds: float, *, start_method: str = "fork") -> dict[str, Any]:
    """``first_batch_ms``: from making the loader; ``turn_around_ms``: from the last batch to the next epoch's first."""
    module = p2n_numpy_batches if getattr(peer, "NUMPY_ONLY", False) else p2_dict_batches
    if start_method not in getattr(peer, "START_METHODS", ("fork", "spawn")):
        raise Unsupported(f"does not start its workers with {start_method}")
    job = replace(module.job(), count=COUNT, start_method=start_method)
    check_pass((checked := peer.Loader(job)), module.check, Counter(range(COUNT)))
    checked.close()
    del checked

    clock = time.perf_counter
    meter, started = Meter(), clock()
    loader = peer.Loader(job)
    stream = iter(loader)
    next(stream)
    first_s = clock() - started
    turns = []
    for _ in range(EPOCHS):
        ended = 0.0
        for _batch in stream:
            ended = clock()
        stream = iter(loader)
        next(stream)
        turns.append(clock() - ended)
    for _batch in stream:
        pass
    del stream, _batch
    closing = clock()
    loader.close()
    close_s = clock() - closing
    return {
        "first_batch_ms": first_s * 1e3,
        "turn_around_ms": sorted(turns)[len(turns) // 2] * 1e3,
        "close_ms": close_s * 1e3,
        "others": meter.read().others,
    }


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p5"])
