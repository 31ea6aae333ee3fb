"""P6: what a checkpoint costs, and resuming it, after k batches of a stream that is shuffled in a buffer of 1,000.

The samples of P2: cheap to make, which favours those that resume by replay. Runs in the measured process.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData
from benchmarks.workloads import p2_dict_batches, p2n_numpy_batches

__all__ = ["PEERS", "POSITIONS", "TITLE", "UNIT", "run"]

TITLE = "P6 resume after 3,000 batches, shuffle buffer of 1,000"
UNIT = "resume_ms_3000"
PEERS = ["torchpipe", "stateful", "nodes", "grain", "torch", "spdl", "mprs09"]

POSITIONS = (100, 1_000, 3_000)
BUFFER = 1_000
_AFTER = 3  # batches behind each position that are compared
_CALLS = 20


def _contents(stream: Iterator[Any]) -> list[tuple[list[int], bytes]]:
    return [(batch["y"].tolist(), np.asarray(batch["x"]).tobytes()) for batch in itertools.islice(stream, _AFTER)]


def run(peer: ModuleType, seconds: float, *, positions: tuple[int, ...] = POSITIONS) -> dict[str, Any]:
    """Reads once up to the last position, takes a state at each, and then resumes each in a fresh loader."""
    if not hasattr(peer.Loader, "state_dict"):
        raise Unsupported("has no state to resume from")
    module = p2n_numpy_batches if getattr(peer, "NUMPY_ONLY", False) else p2_dict_batches
    start_method = getattr(peer, "START_METHODS", ("fork",))[0]
    job = replace(module.job(), count=32 * (max(positions) + 500), shuffle_buffer=BUFFER, start_method=start_method)
    meter = Meter()
    result: dict[str, Any] = {}
    states, expected = {}, {}
    loader = peer.Loader(job)
    stream = iter(loader)
    position = 0
    for wanted in sorted(positions):
        for batch in itertools.islice(stream, wanted - position):
            module.check(batch)
        started = time.perf_counter()
        for _ in range(_CALLS):
            state = loader.state_dict()
        result[f"state_dict_us_{wanted}"] = (time.perf_counter() - started) / _CALLS * 1e6
        states[wanted] = pickle.dumps(state)
        result[f"state_bytes_{wanted}"] = len(states[wanted])
        expected[wanted] = _contents(stream)
        position = wanted + _AFTER
    del stream
    loader.close()
    for wanted in sorted(positions):
        result[f"resume_ms_{wanted}"] = _resume_s(peer, job, states[wanted], expected[wanted], wanted) * 1e3
    result["others"] = meter.read().others
    return result


def _resume_s(peer: ModuleType, job: Job, state: bytes, expected: list[Any], wanted: int) -> float:
    """Seconds from making a loader to its first batch. Raises: WrongData if it goes on with other batches."""
    started = time.perf_counter()
    loader = peer.Loader(job)
    loader.load_state_dict(pickle.loads(state))
    stream = iter(loader)
    first = next(stream)
    took_s = time.perf_counter() - started
    if _contents(itertools.chain([first], stream)) != expected:
        raise WrongData(f"resumed after {wanted} batches, it went on with other ones than before")
    del stream
    loader.close()
    return took_s


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p6"])
