"""The matrix, cell by cell: the main process has too many open files, from the first one that it lacks to the last."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import leaks
from tests.faults.drive import LENGTH, SHARDS, draw, service_for
from tests.laws.executors import make_loader, oracle, pids
from torchpipe.iter import IterableWrapper

ENOUGH = 64  # descriptors that no start needs


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process can open that many more, and no more."""
    used = {int(number) for number in os.listdir("/proc/self/fd")}
    free = [number for number in range(max(used) + count + 2) if number not in used]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def graph_for(dispatched: bool) -> Any:
    source = IterableWrapper(range(LENGTH))
    graph = source.sharding_round_robin_dispatch() if dispatched else source.sharding_filter()
    return graph.map(draw).shuffle(buffer_size=3)


def check_clear(error: OSError) -> None:
    assert error.errno == errno.EMFILE, error  # "Too many open files"


def open_files() -> dict[int, str]:
    found: dict[int, str] = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found[int(link.name)] = os.readlink(link)
    return found


def close_pipes_since(before: dict[int, str]) -> None:
    """Of the two pipes of a process, multiprocessing leaves the first one behind where it cannot have the second."""
    for number, name in open_files().items():
        if number not in before and name.startswith("pipe:"):
            os.close(number)


@pytest.mark.nightly
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_start_that_lacks_files_says_so_and_leaves_nothing(dispatched: bool) -> None:
    expected = oracle(graph_for(dispatched), SHARDS, epochs=1)[0]
    before, files = leaks.Footprint.take(), open_files()
    errors = 0
    for count in range(ENOUGH):
        with make_loader(graph_for(dispatched), service_for("fork")) as loader:
            try:
                with files_left(count):
                    iterator = iter(loader)
                    first = next(iterator)
            except OSError as error:
                errors += 1
                check_clear(error)
            else:
                assert [repr(first), *(repr(item) for item in iterator)] == expected
                break
            # The same loader, once there is room
            assert [repr(item) for item in loader] == expected
        close_pipes_since(files)
        assert leaks.wait_nothing_left(before) == [], count
    assert 3 < errors < ENOUGH


@pytest.mark.parametrize("dispatched", [False, True])
def test_a_restart_that_lacks_files_says_so_and_a_resume_is_exact(dispatched: bool) -> None:
    expected = oracle(graph_for(dispatched), SHARDS, epochs=1)[0]
    files = open_files()
    errors = 0
    for count in range(ENOUGH):
        with make_loader(graph_for(dispatched), service_for("fork")) as loader:
            got, failed = [], False
            iterator = iter(loader)
            got.append(repr(next(iterator)))
            try:
                with files_left(count):
                    os.kill(pids(loader)[-1], signal.SIGKILL)
                    for item in iterator:
                        got.append(repr(item))
            except OSError as error:
                failed = True
                errors += 1
                check_clear(error)
                loader.load_state_dict(loader.state_dict())
                got += [repr(item) for item in loader]
            assert got == expected
        close_pipes_since(files)
        if not failed:
            break
    assert 0 < errors < ENOUGH  # what the one that has died had open serves the next one


def test_what_runs_needs_no_further_file() -> None:
    """Items, the next epoch, a saved state and the shutdown."""
    expected = oracle(graph_for(False), SHARDS, epochs=2)
    with make_loader(graph_for(False), service_for("fork")) as loader:
        iterator = iter(loader)
        got = [[repr(next(iterator))]]
        with files_left(0):
            got[0] += [repr(item) for item in iterator]
            assert loader.state_dict()["num_shards"] == SHARDS
            got.append([repr(item) for item in loader])
            loader.shutdown()
    assert got == expected


def large(item: int) -> np.ndarray[Any, Any]:
    return np.full(100_000, item, np.uint8)
