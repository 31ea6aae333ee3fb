"""What each test costs, measured, and by it which tests run by day of those that cost much.

``costs.txt`` has the seconds of a variant, on average, of each test function whose variants together take long. Of such
a function as many variants run by day as take ``TORCHPIPE_TEST_SECONDS`` (0.3 s; CI gives more), every N-th of
them; none, where one takes six times as long, unless it is marked ``sample``. All run by night.

    python -m pytest -p tests.costs ...     notes costs in the folder $TORCHPIPE_TEST_COSTS, a file for each process
    python -m tests.costs FOLDER            writes them into costs.txt; what did not run keeps its line

Seconds are of processor time, of the test's process and of those below it: waiting costs nothing, and on a busy machine
no test costs more. A cluster of Ray is not below it, so its tests count by the clock.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.leaks import descendants

__all__ = ["by_day"]

_FILE = Path(__file__).with_name("costs.txt")
_DAILY_S = 0.3
_LONGEST = 6  # times as long as all of a function's variants, at most one of them takes by day
_collected: Counter[str] = Counter()


def _function(name: str) -> str:
    return name.partition("[")[0]


def _costs() -> dict[str, float]:
    lines = [line.split(" ", 1) for line in _FILE.read_text().splitlines()]
    return {function: float(seconds) for seconds, function in lines}


def by_day(names: Iterable[str]) -> list[bool]:
    """Whether it runs by day, of each of these tests: all that were collected, in order."""
    daily_s = float(os.environ.get("TORCHPIPE_TEST_SECONDS") or _DAILY_S)
    functions = [*map(_function, names)]
    counts = Counter(functions)
    every = {  # 0: none
        function: math.ceil(seconds * counts[function] / daily_s) if seconds <= _LONGEST * daily_s else 0
        for function, seconds in _costs().items()
    }
    seen: Counter[str] = Counter()
    found = []
    for function in functions:
        nth = every.get(function, 1)
        found.append(nth > 0 and seen[function] % nth == 0)
        seen[function] += 1
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    now = time.monotonic if item.get_closest_marker("ray") else _spent_s
    before = now()
    try:
        return (yield)
    finally:
        folder = Path(os.environ["TORCHPIPE_TEST_COSTS"])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / str(os.getpid())).open("a") as file:
            file.write(f"{now() - before:.3f} {_collected[_function(item.nodeid)]} {item.nodeid}\n")


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
    costs = {function: cost for function, cost in _costs().items() if function not in variants}
    for function, count in variants.items():
        if (cost := seconds[function] / count) * collected[function] > _DAILY_S:
            costs[function] = cost
    _FILE.write_text("".join(f"{costs[function]:.3f} {function}\n" for function in sorted(costs)))


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
