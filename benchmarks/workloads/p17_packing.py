"""P17: documents of tokens packed into sequences of one length: tokens/s, and resuming behind 90 % of the data.

As torchtitan's loader does: each document gives inputs and labels, shifted by one before packing; documents come in
random order, are put one after the other and cut. Batches are int64 tensors: inputs, labels and positions.

Every token says which document it is of and where it stands there, so that a whole pass can be checked. Runs in the
measured process.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.harness.job import Job
from benchmarks.harness.measure import Meter, pss_bytes
from benchmarks.harness.stream import WARM_UP_S, WrongData

__all__ = ["LENGTH", "PEERS", "TITLE", "UNIT", "check_batch", "document", "job", "run", "shifted"]

TITLE = "P17 documents packed into sequences of 2,048 tokens, batch 8"
UNIT = "tokens_per_s"
PEERS = ["packing_torchpipe", "packing_in_process", "packing_grain", "packing_grain_processes", "packing_datasets"]

LENGTH = 2_048
BATCH = 8
CHECKED = 3_000  # documents of the pass that is checked
RESUMED = 20_000  # documents of the pass that is resumed
TIMED = 1_000_000  # documents that there are for the timed part
_PLACES = 1 << 13  # more than any document has tokens
_AFTER = 3  # batches behind the position that are compared


@cache
def _lengths(count: int = 1 << 14) -> Any:
    """How many tokens documents have: most some hundreds, a few some thousands. Repeated after ``count``."""
    return np.random.default_rng(0).lognormal(5.5, 1.0, count).astype(np.int64).clip(2, _PLACES - 1)


def document(index: int) -> Any:
    """The tokens of document ``index``: int64."""
    lengths = _lengths()
    first = index * _PLACES
    return np.arange(first, first + lengths[index % len(lengths)])


def shifted(tokens: Any) -> dict[str, Any]:
    """Inputs and labels of a document: no label is another document's token."""
    return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def job(count: int) -> Job:
    return Job(count=count, make=document, batch_size=BATCH, item_bytes=3 * 8 * BATCH * LENGTH)


def check_batch(batch: Any) -> Any:
    """The inputs that are no padding, flat. Raises: WrongData for another form or content."""
    arrays = [np.asarray(batch[name]) for name in ("input_ids", "labels", "positions")]
    if any(array.shape != (BATCH, LENGTH) or array.dtype != np.int64 for array in arrays):
        raise WrongData(f"expected int64 of shape {(BATCH, LENGTH)}, got {[(a.shape, a.dtype) for a in arrays]}")
    inputs, labels, positions = arrays
    if not (labels == inputs + 1).all():
        raise WrongData("a label is not the token behind its input")
    follows = inputs[:, 1:] == inputs[:, :-1] + 1
    if not np.where(follows, positions[:, 1:] == positions[:, :-1] + 1, positions[:, 1:] == 0).all():
        raise WrongData("positions do not begin anew with each document, or do not count on")
    return inputs.ravel()


def _check_pass(batches: Iterable[Any], count: int) -> None:
    """Raises: WrongData unless each token of ``count`` documents came once, but for those of batches not full."""
    got = np.concatenate([check_batch(batch) for batch in batches])
    expected = np.concatenate([document(index)[:-1] for index in range(count)])
    if len(np.unique(got)) != len(got) or not np.isin(got, expected).all():
        raise WrongData(f"{len(got)} tokens, {len(np.unique(got))} different ones, some of which there should not be")
    if len(expected) - len(got) > 2 * BATCH * LENGTH:  # of two workers, each up to a batch
        raise WrongData(f"{len(expected) - len(got)} tokens were lost")


def run(peer: ModuleType, seconds: float, *, resumed: int = RESUMED) -> dict[str, Any]:
    short = peer.Loader(job(CHECKED))
    _check_pass(short, CHECKED)
    short.close()
    loader = peer.Loader(job(TIMED))
    stream = iter(loader)
    _read(stream, WARM_UP_S)
    meter, started = Meter(), time.perf_counter()
    batches, last = _read(stream, seconds)
    wall_s = time.perf_counter() - started
    usage = meter.read(wall_s)
    check_batch(last)
    pss = pss_bytes()
    del stream, last
    loader.close()
    tokens = batches * BATCH * LENGTH
    return {
        "tokens_per_s": tokens / wall_s,
        "cpu_us_per_sample": usage.cpu_s / tokens * 1e6,
        "pss_mb": pss / 1e6,
        "others": usage.others,
        **_resume(peer, resumed),
    }


def _read(stream: Any, seconds: float) -> tuple[int, Any]:
    """How many batches there were in that time, and the last one."""
    batches, last, end = 0, None, time.perf_counter() + seconds
    while time.perf_counter() < end:
        last = next(stream)
        batches += 1
    return batches, last


def _resume(peer: ModuleType, count: int) -> dict[str, float]:
    """From making a loader to its first batch behind 90 % of the data, and what the state takes."""
    whole = int(sum(len(document(index)) - 1 for index in range(count))) // (BATCH * LENGTH)
    loader = peer.Loader(job(count))
    stream = iter(loader)
    for _ in itertools.islice(stream, whole * 9 // 10):
        pass
    started = time.perf_counter()
    saved = pickle.dumps(loader.state_dict())
    state_s = time.perf_counter() - started
    expected = [check_batch(batch).tobytes() for batch in itertools.islice(stream, _AFTER)]
    del stream
    loader.close()
    started = time.perf_counter()
    loader = peer.Loader(job(count))
    loader.load_state_dict(pickle.loads(saved))
    stream = iter(loader)
    first = next(stream)
    resume_s = time.perf_counter() - started
    batches = itertools.chain([first], itertools.islice(stream, _AFTER - 1))
    if [check_batch(batch).tobytes() for batch in batches] != expected:
        raise WrongData("it went on with other tokens than before")
    del stream
    loader.close()
    return {"resume_ms": resume_s * 1e3, "state_dict_us": state_s * 1e6, "state_bytes": len(saved)}


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p17"])
