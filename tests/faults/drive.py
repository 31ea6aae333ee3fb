"""Drives a loader through one cell of the matrix, and compares what it gives with the in-process stream.

Runs in the consumer's process, which is not the one to be struck. Used by the tests and by the soak run.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.faults.inflict import DEADLY, Fault, Vulnerable
from tests.faults.table import Cell
from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.sources import wait_until
from torchpipe.iter import IterableWrapper

__all__ = ["LENGTH", "SHARDS", "TIMEOUT_S", "Detections", "Run", "fault_of", "graph_of", "run_exact", "run_to_error"]

LENGTH, SHARDS, WORKERS = 24, 2, 2
TIMEOUT_S = 2.0
GIVE_UP_AT = 7  # items delivered before a pass is given up
_NUMBERS = {"mid-item": 9, "last item": LENGTH - 1}


@dataclass
class Run:
    """What came of a cell, in monotonic seconds; ``text`` is the stream of each epoch."""

    text: list[list[str]] = field(default_factory=list)
    restarts: int = 0
    struck_at: float | None = None
    detected_at: float | None = None
    item_at: float | None = None  # the first one after the detection

    @property
    def to_detection_s(self) -> float | None:
        return None if self.detected_at is None or self.struck_at is None else self.detected_at - self.struck_at

    @property
    def to_item_s(self) -> float | None:
        return None if self.item_at is None or self.struck_at is None else self.item_at - self.struck_at


class Detections(logging.Handler):
    """When the library said of which process that it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[int, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"\(pid (\d+)\)", record.getMessage())
        if found:
            self.times.setdefault(int(found[1]), time.monotonic())

    @contextmanager
    def listening(self) -> Iterator[None]:
        log = logging.getLogger("torchpipe")
        log.addHandler(self)
        propagate, log.propagate = log.propagate, False
        try:
            yield
        finally:
            log.removeHandler(self)
            log.propagate = propagate


def draw(item: Any) -> tuple[Any, float]:
    return item, random.random()


def fault_of(cell: Cell, folder: Path, *, always: bool = False) -> Fault:
    return Fault(str(folder), cell.fault, cell.moment, _NUMBERS.get(cell.moment, -1), always)


def graph_of(who: str, fault: Fault) -> Any:
    """A graph whose part in that kind of process is vulnerable."""
    source: Any = IterableWrapper(range(LENGTH))
    if who == "worker":
        return Vulnerable(source.sharding_filter(), fault).map(draw).shuffle(buffer_size=3)
    if who == "dispatcher":
        return Vulnerable(source, fault).map(draw).sharding_round_robin_dispatch().shuffle(buffer_size=3)
    return Vulnerable(source.sharding_round_robin_dispatch(), fault).map(draw).shuffle(buffer_size=3)


def service_for(context: str, **options: Any) -> Any:
    # Without a timeout, but for those that are stopped: beside a load, any process may be silent for that long
    settings = {"every": 2, "main_prefetch_cnt": 2, "worker_prefetch_cnt": 4, "timeout": None}
    return make_service(WORKERS, SHARDS, context=context, **{**settings, **options})


def timeout_for(fault: str) -> float | None:
    return TIMEOUT_S if fault == "SIGSTOP" else None


def run_exact(cell: Cell, folder: Path, context: str = "fork") -> tuple[Run, list[list[str]]]:
    """Two epochs around the fault: what came of them, and what should have. Raises what the loader raises."""
    fault, detections = fault_of(cell, folder), Detections()
    expected = oracle(graph_of(cell.who, fault), SHARDS, epochs=2)
    run = Run()
    with (
        detections.listening(),
        make_loader(graph_of(cell.who, fault), service_for(context, timeout=timeout_for(cell.fault))) as loader,
    ):
        try:
            if cell.moment == "while stopping":
                run.text, expected = _stop(loader, fault, expected)
            else:
                run.text = _two_epochs(loader, cell, fault, detections, run)
        finally:
            run.restarts = loader.reading_service.restarts  # type: ignore[attr-defined]
    for strike in fault.strikes:
        run.struck_at, run.detected_at = strike.at, detections.times.get(strike.pid)
    return run, expected


def _two_epochs(loader: Any, cell: Cell, fault: Fault, detections: Detections, run: Run) -> list[list[str]]:
    if cell.moment not in ("epoch start", "epoch boundary", "pass given up"):
        fault.arm()
    first = _read(loader, fault, detections, run, GIVE_UP_AT if cell.moment == "pass given up" else None)
    if cell.moment == "pass given up":
        fault.arm()
        loader.set_epoch(0)
        first = _read(loader, fault, detections, run)
    elif cell.moment == "epoch start":
        fault.arm()
    elif cell.moment == "epoch boundary":
        fault.arm()
        strike_from_outside(fault, pids(loader)[0 if cell.who == "dispatcher" else -1])
    return [first, _read(loader, fault, detections, run)]


def _read(loader: Any, fault: Fault, detections: Detections, run: Run, most: int | None = None) -> list[str]:
    got = []
    for item in loader:
        got.append(repr(item))
        if run.item_at is None and any(strike.pid in detections.times for strike in fault.strikes):
            run.item_at = time.monotonic()
        if len(got) == most:
            break
    return got


def _stop(loader: Any, fault: Fault, expected: list[list[str]]) -> tuple[list[list[str]], list[list[str]]]:
    """Part of an epoch, a shutdown with the fault in it, and the rest, in process: the whole epoch."""
    iterator = iter(loader)
    got = [repr(next(iterator)) for _ in range(GIVE_UP_AT)]
    state = loader.state_dict()
    fault.arm()
    loader.shutdown()
    fault.disarm()  # if it has not struck there, it must not strike here
    with make_loader(loader.datapipe, make_service(None, SHARDS)) as other:
        other.load_state_dict(state)
        return [got + [repr(item) for item in other]], expected[:1]


def strike_from_outside(fault: Fault, pid: int) -> None:
    """Let ``pid``, which runs no user code, be struck; waits until it has been."""
    os.kill(pid, signal.SIGUSR1)
    wait_until(lambda: bool(fault.strikes))
    assert fault.strikes[0].pid == pid
    if fault.what in (*DEADLY, "SIGSTOP"):
        wait_until(lambda: is_struck_down(pid))


def is_struck_down(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD, psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return True


def run_to_error(
    cell: Cell, folder: Path, context: str = "fork", *, always: bool = False, **options: Any
) -> tuple[BaseException | None, list[str], list[str]]:
    """Two epochs with a fault that raises: the error, what was delivered around it, and what should have been.

    What comes after the error is taken by a new loader, from the state of the first and with the fault disarmed.
    """
    fault = fault_of(cell, folder, always=always)
    expected = [text for epoch in oracle(graph_of(cell.who, fault), SHARDS, epochs=2) for text in epoch]
    got: list[str] = []
    error: BaseException | None = None
    service = service_for(context, **{"timeout": timeout_for(cell.fault), **options})
    with make_loader(graph_of(cell.who, fault), service) as loader:
        try:
            for number in range(2):
                _prepare(loader, cell, fault, number)
                for item in loader:
                    got.append(repr(item))
        except Exception as raised:
            error = raised
        state = loader.state_dict()
    fault.disarm()
    with make_loader(graph_of(cell.who, fault), service_for(context)) as loader:
        loader.load_state_dict(state)
        while len(got) < len(expected):
            before = len(got)
            got += [repr(item) for item in loader]
            assert len(got) > before, "an epoch without items"
    return error, got, expected


def _prepare(loader: Any, cell: Cell, fault: Fault, number: int) -> None:
    """Before epoch ``number`` begins."""
    late = cell.moment in ("epoch start", "epoch boundary")
    if not late and number == 0:
        if cell.moment == "pass given up":
            next(iter(loader))
        fault.arm()
        loader.set_epoch(0)
    elif late and number == 1:
        fault.arm()
        if cell.moment == "epoch boundary":
            strike_from_outside(fault, pids(loader)[0 if cell.who == "dispatcher" else -1])
