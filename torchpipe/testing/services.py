"""``check_reading_service``: does a reading service keep the laws? For torchpipe's own services and for third parties'.

Runs in the test's process; the service under test may start others.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchpipe.errors import IteratorInvalidated
from torchpipe.execution.reading_service import InProcessReadingService, ReadingServiceInterface
from torchpipe.iter import IterableWrapper
from torchpipe.loader.dataloader2 import DataLoader2

__all__ = ["check_reading_service", "sample_graph"]

MakeService = Callable[[int | None], ReadingServiceInterface]
"""Makes a new service with the given ``num_shards``, or with that argument left unset for None."""

_GRACE_S = 5.0
_SEED = 7


def sample_graph(length: int = 61) -> Any:
    """A graph with all that makes exactness hard: two shuffles, a filter, global and per-item randomness, batches."""
    return (
        IterableWrapper(range(length))
        .shuffle(buffer_size=16)
        .sharding_filter()
        .map(_augment)
        .random_map(_jitter)
        .filter(_keep)
        .shuffle(buffer_size=5)
        .batch(2)
    )


def check_reading_service(
    make: MakeService,
    *,
    num_shards: int = 2,
    crash: Callable[[ReadingServiceInterface], None] | None = None,
    length: int = 61,
    thorough: bool = True,
) -> None:
    """Check a service against in-process execution with the same ``num_shards``, the oracle.

    Checked: the stream of several epochs (L1); resume at the start, in the middle and at the end, here and in process,
    in both directions (L2, L3); an error of user code at its place (L7); abandoned epochs; an older iterator refused;
    and that ``shutdown`` leaves no process, thread or descriptor (L6). ``crash(service)``, if given, must kill a
    process of the running service: the stream has to go on as if nothing had happened (L4). Without ``thorough``, fewer
    positions are tried, for services that take seconds to start.

    Raises: AssertionError that says which of these failed, with both streams where they differ.
    """
    check = _Check(make, num_shards, length, thorough)
    before = _footprint()
    for part in (check.streams, check.resume, check.user_error, check.abandoned):
        part()
        _expect_no_more_than(before, part.__name__)
    if crash is not None:
        check.crash(crash)
        _expect_no_more_than(before, "crash")


class _Check:
    def __init__(self, make: MakeService, num_shards: int, length: int, thorough: bool) -> None:
        self.make = make
        self.thorough = thorough
        self.num_shards = num_shards
        self.length = length
        with self.loader(InProcessReadingService(num_shards=num_shards)) as oracle:
            self.epochs = [_text(oracle) for _ in range(3)]

    def loader(self, service: ReadingServiceInterface) -> DataLoader2[Any]:
        loader: DataLoader2[Any] = DataLoader2(sample_graph(self.length), reading_service=service)
        loader.seed(_SEED)
        return loader

    def streams(self) -> None:
        with self.loader(self.make(self.num_shards)) as loader:
            for epoch, expected in enumerate(self.epochs):
                _expect(_text(loader), expected, f"epoch {epoch} differs from in-process execution")

    def resume(self) -> None:
        first = self.epochs[0]
        middle = len(first) // 2
        for count in sorted({0, 1, middle, len(first) - 1, len(first)}) if self.thorough else (middle,):
            expected = first[count:]  # the rest of its epoch, which may be empty
            for save, load in (
                (self.make(self.num_shards), self.make(None)),
                (InProcessReadingService(num_shards=self.num_shards), self.make(None)),
                (self.make(self.num_shards), InProcessReadingService()),
            ):
                with self.loader(save) as loader:
                    iterator = iter(loader)
                    for _ in range(count):
                        next(iterator)
                    state = loader.state_dict()
                with self.loader(load) as loader:
                    loader.load_state_dict(state)
                    again = loader.state_dict()
                    what = f"resumed after {count} items, {type(save).__name__} -> {type(load).__name__}"
                    _expect(_text(loader), expected, what)
                    _expect(_text(loader), self.epochs[1], f"{what}, in the next epoch")
                    loader.load_state_dict(again)
                    _expect(
                        _text(loader), expected, f"{what}, a second time, from a state saved straight after loading"
                    )

    def user_error(self) -> None:
        graph = IterableWrapper(range(20)).sharding_filter().map(_fail_at_eleven)
        with DataLoader2(graph, reading_service=self.make(self.num_shards)) as loader:
            delivered: list[Any] = []
            try:
                for item in loader:
                    delivered.append(item)
            except ZeroDivisionError as error:
                notes = "\n".join(getattr(error, "__notes__", []))
                assert "Mapper" in notes, f"the error's notes do not name the node: {notes!r}"
            else:
                raise AssertionError(f"the user's exception did not arrive; the epoch ended after {delivered}")
            assert delivered == list(range(11)), f"the error arrived out of place, after {delivered}"

    def abandoned(self) -> None:
        with self.loader(self.make(self.num_shards)) as loader:
            first = iter(loader)
            next(first)
            next(first)  # one alone would be a look
            second = iter(loader)
            try:
                next(first)
            except IteratorInvalidated:
                pass
            else:
                raise AssertionError("an iterator that a newer one has replaced still hands out items")
            _expect([repr(item) for item in second], self.epochs[1], "the epoch after an abandoned one differs")

    def crash(self, crash: Callable[[ReadingServiceInterface], None]) -> None:
        for at in (0, len(self.epochs[0]) // 2) if self.thorough else (0,):
            service = self.make(self.num_shards)
            with self.loader(service) as loader:
                for epoch, expected in enumerate(self.epochs[:2]):
                    got = []
                    for index, item in enumerate(loader):
                        got.append(repr(item))
                        if index == at:
                            crash(service)
                    _expect(got, expected, f"epoch {epoch} differs after a crash after item {at}")


def _text(loader: DataLoader2[Any]) -> list[str]:
    return [repr(item) for item in loader]


def _expect(got: list[str], expected: list[str], what: str) -> None:
    if got != expected:
        where = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        raise AssertionError(
            f"{what}: {len(got)} items, expected {len(expected)}; the first difference is at {where}:\n"
            f"  got      {got[where : where + 2]}\n  expected {expected[where : where + 2]}"
        )


def _footprint() -> tuple[set[Any], set[Any], int]:
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir())) if os.path.isdir("/proc/self/fd") else 0
    return set(multiprocessing.active_children()), set(threading.enumerate()), descriptors


def _expect_no_more_than(before: tuple[set[Any], set[Any], int], part: str) -> None:
    deadline = time.monotonic() + _GRACE_S
    while True:
        processes, threads, descriptors = _footprint()
        left = [f"{len(processes - before[0])} processes"] if processes - before[0] else []
        left += [thread.name for thread in threads - before[1]]
        # multiprocessing's own helpers keep a few descriptors from their first use on
        left += [f"{descriptors - before[2]} descriptors"] if descriptors > before[2] + 4 else []
        if not left:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{part}: after shutdown() these are left: {', '.join(left)}")
        threading.Event().wait(0.05)


def _augment(number: int) -> tuple[int, float, float, float]:
    return number, random.random(), float(np.random.rand()), float(torch.rand(()))


def _jitter(item: tuple[Any, ...], generator: np.random.Generator) -> tuple[Any, ...]:
    return (*item, float(generator.random()))


def _keep(item: tuple[Any, ...]) -> bool:
    return bool(item[0] % 5)


def _fail_at_eleven(number: int) -> int:
    return number // (number - 11) * 0 + number
