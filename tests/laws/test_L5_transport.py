"""L5, bounded, for what travels in shared memory: large batches are never lost or changed, and take no more than asked.

The rules for users: a batch is theirs for as long as they keep it, to write to as well, whatever becomes of the worker
or the loader; keeping all of them is slower (they are copied), never a deadlock.
"""

from __future__ import annotations

import os
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.laws.executors import PROCESSES, make_loader, make_service, pids
from tests.sources import wait_until
from tests.warm import Warm
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper

MEGABYTE = 1 << 20
WAYS = ["collated", "dispatched"]


def batch(number: int) -> torch.Tensor:
    """1 MB that no other number has."""
    return torch.from_numpy(np.random.default_rng(number).integers(0, 2**62, MEGABYTE // 8))


def negate(sample: torch.Tensor) -> torch.Tensor:
    return -sample


def head(sample: torch.Tensor) -> list[int]:
    return [int(number) for number in sample[:4]]


def quarter(number: int) -> torch.Tensor:
    """256 KB, four of which make a batch."""
    return batch(number // 4).view(4, -1)[number % 4]


def batches(count: int, *, way: str = "divided") -> Any:
    """``batch(0)``, ``batch(1)`` and so on, in two shards; what is dispatched comes with the other sign."""
    source = IterableWrapper(range(count))
    if way == "dispatched":
        return source.map(batch).sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(negate)
    if way == "collated":
        return source.sharding_filter().flatmap(four).map(quarter).batch(4).collate().map(torch.flatten)
    return source.sharding_filter().map(batch)


def four(number: int) -> range:
    return range(4 * number, 4 * number + 4)


def assert_stream(got: list[torch.Tensor], graph: Any) -> None:
    """Compare with in-process execution."""
    with make_loader(graph, make_service(None, 2)) as loader:
        for arrived, expected in zip(got, loader, strict=True):
            assert torch.equal(arrived, expected)


# -- whoever keeps batches --------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("context", "way"), [*((each, "divided") for each in PROCESSES), *(("fork", way) for way in WAYS)]
)
def test_L5_keeping_every_batch_neither_blocks_nor_changes_any(context: str, way: str) -> None:
    graph = batches(100, way=way)
    with make_loader(graph, make_service(2, None, context=context)) as loader:
        kept = list(loader)
    assert_stream(kept, graph)


@pytest.mark.parametrize("way", ["divided", "collated"])
def test_L5_batches_survive_the_loader_and_can_be_written_to(way: str) -> None:
    loader = make_loader(batches(30, way=way), make_service(2, None))
    kept = list(islice(loader, 12))
    loader.shutdown()
    for number, sample in enumerate(kept):
        assert torch.equal(sample, batch(number))
        sample.fill_(number)
    assert [int(sample.unique()) for sample in kept] == list(range(12))


@pytest.mark.parametrize(("context", "way"), [("fork", "divided"), ("fork", "collated"), ("forkserver", "collated")])
def test_L5_batches_survive_their_worker(context: str, way: str) -> None:
    with make_loader(batches(40, way=way), make_service(2, None, context=context)) as loader:
        iterator = iter(loader)
        kept = list(islice(iterator, 6))
        for pid in pids(loader):
            os.kill(pid, signal.SIGKILL)
        kept += iterator
        assert loader.reading_service.stats().restarts == 2  # type: ignore[attr-defined]
    assert_stream(kept, batches(40))


@pytest.mark.parametrize("way", ["divided", "collated"])
def test_L5_what_is_written_into_a_batch_changes_no_other(way: str) -> None:
    count = 60
    with make_loader(batches(count, way=way), make_service(2, None)) as loader:
        kept: list[tuple[int, torch.Tensor]] = []
        for number, sample in enumerate(loader):
            assert torch.equal(sample, batch(number))
            sample.fill_(number)
            kept.append((number, sample))
            del kept[:-25]  # more than stay in place: the older ones give their slots back
            if number % 20 == 0:
                del kept[::2]
    assert number == count - 1
    assert len(kept) > 10
    for number, sample in kept:
        assert (sample == number).all()


class Keeper:
    """A worker's function that keeps what it has handed out, and looks at it again later."""

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        self.kept.append(sample)
        return self.kept[len(self.kept) // 2]


def test_L5_what_a_worker_keeps_of_its_batches_is_not_touched_by_whoever_got_them() -> None:
    with make_loader(batches(60, way="collated").map(Keeper()), make_service(None, 1)) as loader:
        expected = [sample.clone() for sample in loader]
    with make_loader(batches(60, way="collated").map(Keeper()), make_service(1, None)) as loader:
        for sample, other in zip(loader, expected, strict=True):
            assert torch.equal(sample, other)
            sample.fill_(-1)


# -- how much memory --------------------------------------------------------------------------


def arenas(processes: list[int]) -> dict[int, int]:
    """What the shared files take that these processes have open, in bytes of memory, by inode."""
    found = {}
    for pid in processes:
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            try:
                if "torchpipe-arena" in os.readlink(path):
                    status = os.stat(path)
                    found[status.st_ino] = 512 * status.st_blocks
            except FileNotFoundError:  # closed meanwhile
                pass
    return found


def test_L5_dropped_batches_give_their_memory_to_the_next_ones() -> None:
    window, slot = 4, 2 * MEGABYTE  # a power of two, and there is a pickle beside the megabyte
    full = 2 * (window * slot + 4096)
    service = make_service(2, None, worker_prefetch_cnt=window)
    before = arenas([os.getpid()]).keys()  # forked workers have copies of what this process has open
    with make_loader(batches(200), service) as loader:

        def shared() -> int:
            found = arenas(pids(loader))
            return sum(size for inode, size in found.items() if inode not in before)

        for number, sample in enumerate(loader):
            if number == 50:  # let the workers run ahead as far as they may
                wait_until(lambda: shared() >= 2 * window * MEGABYTE)
            if number >= 50 and number % 10 == 0:
                assert shared() <= full
            assert sample[0] == batch(number)[0]


class Log:
    """Appends a byte to a file for every item that is made, in whatever process that happens."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, number: int) -> torch.Tensor:
        with open(self.path, "ab") as file:
            file.write(b".")
        return batch(number)


@pytest.mark.parametrize(("megabytes", "ahead"), [(1, 2), (3, 3), (5, 5), (100, 8)])
def test_L5_workers_run_ahead_no_further_than_the_bytes_asked_for(tmp_path: Path, megabytes: int, ahead: int) -> None:
    """Two messages are always allowed, and eight here; between them it is the bytes that count."""
    log = tmp_path / "log"
    log.touch()
    graph = IterableWrapper(range(60)).sharding_filter().map(Log(log))
    service = make_service(
        2, None, worker_prefetch_cnt=8, worker_prefetch_bytes=megabytes * MEGABYTE, main_prefetch_cnt=0
    )
    with make_loader(graph, service) as loader:
        for delivered, _ in enumerate(loader, start=1):
            # What the consumer has in hand counts as outstanding until the next one is asked for
            assert log.stat().st_size <= delivered - 1 + 2 * ahead
            if delivered == 10:
                wait_until(lambda: log.stat().st_size >= 8 + 2 * ahead)


# -- without shared memory --------------------------------------------------------------------

SCRIPT = """
import resource
import sys
import threading
import warnings

import torch

from reading_services import MultiProcessingReadingService
from tests.laws.test_L5_transport import batches, head
from torchpipe import DataLoader2

if __name__ == "__main__":
    context, way = sys.argv[1:]
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # as many a library has one
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    graph = batches(20, way=way)
    graph = graph.map(head).map(torch.tensor) if way == "dispatched" else graph
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        with DataLoader2(graph, reading_service=MultiProcessingReadingService(2, context)) as loader:
            kept = list(loader)
    with DataLoader2(graph) as loader:
        print(len(kept), all(torch.equal(*both) for both in zip(kept, loader, strict=True)))
    for warning in caught:
        if warning.category is not DeprecationWarning:  # newer Pythons' of os.fork() in a process with threads
            print(warning.category.__name__, warning.message)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("context", "way"), [*((each, "divided") for each in PROCESSES), *(("fork", way) for way in WAYS)]
)
def test_L5_without_shared_memory_the_stream_is_the_same_and_a_warning_says_so(
    context: str, way: str, warm: Warm, tmp_path: Path
) -> None:
    """What is dispatched is large here only until it has reached the workers: it is the dispatcher that says so."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = warm.run([str(script), context, way], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    stream, warning = done.stdout.splitlines()
    assert stream == "20 True"
    assert warning.startswith("UserWarning shared memory is short")
    assert "File too large" in warning
