"""P15: resuming behind 100,000 batches of a shuffled sampler: from making a loader to its first batch.

Samples are integers, four in a batch, a list: next to nothing is measured but finding the place. Runs in the measured
process.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from benchmarks.harness.job import Job, Unsupported
from benchmarks.harness.measure import Meter
from benchmarks.harness.stream import WrongData

__all__ = ["PEERS", "TITLE", "UNIT", "run"]

TITLE = "P15 resume behind 100,000 batches of a shuffled sampler"
UNIT = "resume_ms"
PEERS = ["dataloader", "torch", "stateful", "spdl_dataloader"]

POSITION = 100_000
BATCH = 4
_AFTER = 3  # batches behind the position that are compared
_CALLS = 20


def make(index: int) -> int:
    return index


def collate(samples: list[int]) -> list[int]:
    return samples


def check(seen: Iterable[list[int]], count: int) -> None:
    """Raises: WrongData if an index is repeated or there is none such."""
    indices = list(itertools.chain.from_iterable(seen))
    if len(set(indices)) != len(indices) or not all(0 <= index < count for index in indices):
        raise WrongData(f"{len(indices)} indices, {len(set(indices))} different ones, are no part of a permutation")


def run(peer: ModuleType, seconds: float, *, position: int = POSITION) -> dict[str, Any]:
    """Reads up to the position, takes a state there, and resumes it in a fresh loader."""
    if not hasattr(peer.Loader, "state_dict"):
        raise Unsupported("has no state to resume from")
    count = BATCH * (position + 500)
    job = Job(count=count, make=make, batch_size=BATCH, collate=collate, permute=True)
    torch.manual_seed(7)
    meter = Meter()
    loader = peer.Loader(job)
    stream = iter(loader)
    check(itertools.islice(stream, position), count)
    started = time.perf_counter()
    for _ in range(_CALLS):
        state = loader.state_dict()
    state_s = (time.perf_counter() - started) / _CALLS
    saved = pickle.dumps(state)
    expected = list(itertools.islice(stream, _AFTER))
    del stream
    loader.close()

    torch.manual_seed(8)  # another process's generators stand elsewhere
    started = time.perf_counter()
    loader = peer.Loader(job)
    loader.load_state_dict(pickle.loads(saved))
    stream = iter(loader)
    first = next(stream)
    resume_s = time.perf_counter() - started
    if [first, *itertools.islice(stream, _AFTER - 1)] != expected:
        raise WrongData(f"resumed after {position} batches, it went on with other ones than before")
    del stream
    loader.close()
    return {
        "resume_ms": resume_s * 1e3,
        "state_dict_us": state_s * 1e6,
        "state_bytes": len(saved),
        "others": meter.read().others,
    }


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p15"])
