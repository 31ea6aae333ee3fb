"""What each test costs, measured, and by it which tests run by day of those that cost much.

``costs.txt`` has the seconds of a variant, on average, of each test function whose variants together take long. Of such
a function as many variants run by day as take ``TORCHPIPE_TEST_SECONDS`` (0.3 s; CI gives more), by the hashes of their
names, so that each value of each parameter has its chance; none, where one takes six times as long. Variants on XLA
count by themselves. What is marked ``sample`` runs by day whatever it costs. All run by night.

    python -m pytest -p tests.costs ...     notes costs in the folder $TORCHPIPE_TEST_COSTS, a file for each process
    python -m tests.costs FOLDER            writes them into costs.txt; what did not run keeps its line

Seconds are of processor time, of the test's process and of those below it: waiting costs nothing, and on a busy machine
no test costs more. What many tests share (a fixture of a module or of the session) is charged to none. A cluster of Ray
is not below a test's process, so its tests count by the clock.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.leaks import descendants

__all__ = ["by_day"]

_FILE = Path(__file__).with_name("costs.txt")
_DAILY_S = 0.3
_LONGEST = 6  # times as long as all of a function's variants, at most one of them takes by day
_collected: Counter[str] = Counter()
_shared = SimpleNamespace(item=None, within=False, seconds=0.0)  # of the test that runs: what was set up for others too


def _function(name: str) -> str:
    return name.partition("[")[0]


def _costs() -> dict[str, float]:
    lines = [line.split(" ", 1) for line in _FILE.read_text().splitlines()]
    return {function: float(seconds) for seconds, function in lines}


def by_day(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Those that run by day, of all that were collected."""
    daily_s = float(os.environ.get("TORCHPIPE_TEST_SECONDS") or _DAILY_S)
    variants: dict[tuple[str, bool], list[pytest.Item]] = defaultdict(list)
    for item in items:
        variants[_function(item.nodeid), item.get_closest_marker("xla") is not None].append(item)
    costs = _costs()
    found: set[pytest.Item] = set()
    for (function, _), some in variants.items():
        seconds = costs.get(function, 0.0)
        if seconds <= _LONGEST * daily_s:
            count = max(1, int(daily_s / seconds)) if seconds else len(some)
            found.update(sorted(some, key=lambda item: zlib.crc32(item.nodeid.encode()))[:count])
    return found


def _spent_s() -> float:
    """By this process and those below it, of which each counts those that it has waited for."""
    found = 0.0
    for pid in [os.getpid(), *descendants()]:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            found += times.user + times.system + times.children_user + times.children_system
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _collected.update(_function(item.nodeid) for item in items)


def _clock_of(item: pytest.Item) -> Callable[[], float]:
    return time.monotonic if item.get_closest_marker("ray") else _spent_s


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[None]:
    """What several tests share is nobody's."""
    if fixturedef.scope == "function" or _shared.within:
        return (yield)
    now = _clock_of(_shared.item)
    before = now()
    _shared.within = True
    try:
        return (yield)
    finally:
        _shared.within = False
        _shared.seconds += now() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("cuda") is not None:  # skipped, where there is none
        return (yield)
    now = _clock_of(item)
    _shared.item, _shared.seconds = item, 0.0
    before = now()
    try:
        return (yield)
    finally:
        folder = Path(os.environ["TORCHPIPE_TEST_COSTS"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / str(os.getpid())).open("a") as file:
            file.write(f"{now() - before - _shared.seconds:.3f} {_collected[_function(item.nodeid)]} {item.nodeid}\n")


def _write(folder: Path) -> None:
    seconds: Counter[str] = Counter()
    variants: Counter[str] = Counter()
    collected: dict[str, int] = {}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            taken, count, name = line.split(" ", 2)
            function = _function(name)
            seconds[function] += float(taken)
            variants[function] += 1
            collected[function] = int(count)
    costs = _costs()
    for function, count in variants.items():
        cost = seconds[function] / count
        if function in costs or cost * collected[function] > _DAILY_S:
            costs[function] = cost
    _FILE.write_text("".join(f"{costs[function]:.3f} {function}\n" for function in sorted(costs)))


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
