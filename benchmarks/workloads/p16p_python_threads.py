"""P16p: worker threads over pure Python work, a millisecond or so a sample; beside worker processes. Batch 32.

Each sample is a text that is split into words, each of which gets a number by its letters (the hashing trick): no
extension module is asked for more than a word, so threads gain where there is no interpreter lock, and nowhere else. To
measure that, let it run on a free-threaded Python, with and without its lock:

    PYTHON_GIL=0 python benchmarks/run.py p16p --python PATH/TO/python3.13t

Runs in the measured process.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections import Counter
from types import ModuleType
from typing import Any

from benchmarks.harness.job import Job
from benchmarks.harness.stream import WrongData, measure_stream

__all__ = ["PEERS", "TITLE", "UNIT", "check", "collate", "job", "make", "run"]

TITLE = "P16p worker threads beside worker processes, words of texts hashed in pure Python, batch 32"
UNIT = "samples_per_s"
PEERS = ["threads", "one_thread", "dataloader", "torch"]

BATCH = 32
CHECKED = 20 * BATCH
WORDS = 600  # in a text
_NUMBERS = 65_521  # for words
_TEXTS = 64


@functools.cache
def _text(which: int) -> str:
    return " ".join(f"Word{which * 7 + place * 31}," for place in range(WORDS))


def make(index: int) -> tuple[int, list[int]]:
    """The sample's number, and those of its words."""
    numbers = []
    for word in _text(index % _TEXTS).split():
        number = 0
        for letter in word.strip(".,;").lower().encode():
            number = (number * 257 + letter) % _NUMBERS
        numbers.append(number)
    return index, numbers


def collate(samples: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
    """As it is: putting numbers into tensors would not be Python's work."""
    return samples


@functools.cache
def _words(which: int) -> list[int]:
    """The numbers in another way: the letters are digits to the base of 257."""
    words = (f"word{which * 7 + place * 31}" for place in range(WORDS))
    return [sum(ord(letter) * 257**at for at, letter in enumerate(reversed(word))) % _NUMBERS for word in words]


def check(batch: Any) -> list[int]:
    """The numbers of a batch's samples. Raises: WrongData unless every word is the sample's."""
    if len(batch) != BATCH:
        raise WrongData(f"expected {BATCH} samples, got {len(batch)}")
    for index, numbers in batch:
        if numbers != _words(index % _TEXTS):
            raise WrongData(f"the words of sample {index} are others than those of its text")
    return [index for index, _ in batch]


def ids(count: int) -> Counter[int]:
    return Counter(range(count))


def job() -> Job:
    for which in range(_TEXTS):  # before there are workers
        _text(which)
    return Job(count=BATCH * 100_000, make=make, batch_size=BATCH, collate=collate, item_bytes=8 * BATCH * WORDS)


def run(peer: ModuleType, seconds: float) -> dict[str, Any]:
    figures = measure_stream(peer, job(), max(seconds, 2.0), check=check, check_count=CHECKED, ids=ids)
    lock = sys._is_gil_enabled() if hasattr(sys, "_is_gil_enabled") else True
    return {**figures, "python": platform.python_version(), "interpreter_lock": lock}


if __name__ == "__main__":
    from benchmarks.run import main

    main(["p16p"])
