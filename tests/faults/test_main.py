"""The matrix, cell by cell: the main process itself. Nobody survives it, and its last saved state resumes exactly."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.inflict import Fault
from tests.faults.mains import (
    STOPPED_S,
    die_over_stopped_workers,
    expected_items,
    resumed_items,
    saved_position,
    survivors,
    train,
)
from tests.faults.table import EXACT, Cell, cells
from tests.sources import wait_until

CELLS = [cell for cell in cells("main") if cell.outcome.kind == EXACT]
CODES = {"exit 0": 0, "exit 1": 1, "exception": 1, "SIGSTOP": 0}


def started(fault: Fault, method: str, context: str) -> Any:
    process = multiprocessing.get_context(method).Process(target=train, args=(fault, context))
    process.start()
    return process


def check(cell: Cell, folder: Path, context: str, method: str = "fork") -> float:
    """Returns the seconds from the strike to the end of the last process; of SIGSTOP, to the end of the run."""
    fault = Fault(str(folder), cell.fault, cell.moment)
    process = started(fault, method, context)
    try:
        if cell.fault == "SIGSTOP":
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            # What is tested is that time passes: more of it than the workers are given to show that they live
            threading.Event().wait(STOPPED_S)
            os.kill(process.pid, signal.SIGCONT)
        process.join()
        code = process.exitcode
        wait_until(lambda: survivors(process.pid) == [])
        gone_at = time.monotonic()
    finally:
        for left in survivors(process.pid):
            left.kill()
        process.join()
        process.close()
    assert len(fault.strikes) == 1, code
    assert code == (CODES[cell.fault] if cell.fault in CODES else -getattr(signal, cell.fault))
    check_resume(cell, folder)
    return gone_at - fault.strikes[0].at


def check_resume(cell: Cell, folder: Path) -> None:
    if cell.fault == "SIGSTOP" and cell.moment != "while stopping":
        assert (folder / "restarts").read_text() == "0"
    expected, delivered = expected_items(), (folder / "items").read_text().splitlines()
    count, state = saved_position(folder)
    assert delivered == expected[: len(delivered)]
    assert len(delivered) - count in (0, 1)  # struck before it could save, at most
    assert resumed_items(state, count) == expected[count:]


def nightly_but(chosen: list[Cell], every: int) -> list[Any]:
    return [
        pytest.param(cell, id=str(cell), marks=[pytest.mark.nightly] if number % every else [])
        for number, cell in enumerate(chosen)
    ]


@pytest.mark.parametrize("cell", nightly_but(CELLS, 3))
def test_nobody_survives_and_a_resume_is_exact(cell: Cell, tmp_path: Path) -> None:
    check(cell, tmp_path, "fork")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("cell", "context"),
    [
        (Cell("main", "SIGKILL", "mid-item"), "forkserver"),
        (Cell("main", "SIGSEGV", "while stopping"), "forkserver"),
        (Cell("main", "SIGKILL", "start"), "spawn"),
    ],
    ids=str,
)
def test_nobody_survives_under_other_start_methods(cell: Cell, context: str, tmp_path: Path) -> None:
    check(cell, tmp_path, context, "forkserver")


@pytest.mark.parametrize(("context", "method"), [("fork", "fork"), ("spawn", "forkserver")])
def test_stopped_workers_do_not_survive_either(context: str, method: str) -> None:
    """They cannot notice anything: the kernel's parent-death signal kills them. (A forkserver outlives them.)"""
    process = multiprocessing.get_context(method).Process(target=die_over_stopped_workers, args=(context,))
    process.start()
    try:
        process.join()
        assert process.exitcode == -signal.SIGKILL
        wait_until(lambda: survivors(process.pid) == [])
    finally:
        for left in survivors(process.pid):
            left.kill()
        process.close()
