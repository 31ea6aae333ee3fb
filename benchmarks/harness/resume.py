"""Measure how long it takes a loader to go on behind a position.

Runs in the measured process. Imports the harness only.
"""

from __future__ import annotations

import gc
import itertools
import pickle
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["measure_resume"]

_AFTER = 3  # items behind the position that are compared


def measure_resume(peer: ModuleType, job: Job, position: int, content: Callable[[Any], Any]) -> dict[str, Any]:
    """From making a loader to its item ``position``: by its state if it has one, else by reading up to there again.

    ``own_cpu_ms`` is the processor time of this process meanwhile, without its workers'. ``content`` checks an item and
    says what is in it. Raises: WrongData if a resumed loader goes on with other items.
    """
    stateful = hasattr(peer.Loader, "state_dict")
    meter = Meter()
    loader = peer.Loader(job)
    stream = iter(loader)
    for _ in itertools.islice(stream, position):
        pass
    saved = pickle.dumps(loader.state_dict()) if stateful else b""
    expected = [content(item) for item in itertools.islice(stream, _AFTER)]
    del stream
    loader.close()

    gc.collect()  # not in the midst of it: what is there besides is none of the loader's
    started, cpu = time.perf_counter(), time.process_time()
    loader = peer.Loader(job)
    if stateful:
        loader.load_state_dict(pickle.loads(saved))
    stream = iter(loader)
    for _ in itertools.islice(stream, 0 if stateful else position):
        pass
    first = next(stream)
    resume_s, own_cpu_s = time.perf_counter() - started, time.process_time() - cpu
    if [content(item) for item in itertools.chain([first], itertools.islice(stream, _AFTER - 1))] != expected:
        raise WrongData(f"resumed behind {position} items, it went on with other ones than before")
    del stream
    loader.close()
    figures = {"resume_ms": resume_s * 1e3, "own_cpu_ms": own_cpu_s * 1e3}
    return {**figures, "state_bytes": len(saved), "others": meter.read().others}
