"""Every cell of the fault matrix once, under fork, with the times that it took. Runs in the consumer's process.

Used by the soak run, which prints the figures.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.drive import TIMEOUT_S, run_exact, run_to_error
from tests.faults.table import CHILDREN, EXACT, NAMED, WHO, Cell, cells
from tests.faults.test_main import check as check_main

__all__ = ["DETECTION_S", "run_matrix"]

DETECTION_S = 1.0  # of SIGSTOP: after the timeout


def run_matrix() -> dict[str, Any]:
    """All cells that have a stream to compare: figures in seconds, from the strike on."""
    times: dict[str, defaultdict[str, list[float]]] = {
        what: defaultdict(list) for what in ("detection", "next item", "gone")
    }
    faults: list[str] = []
    late: list[str] = []
    run: Counter[str] = Counter()
    began = time.monotonic()
    for cell in [cell for cell in cells(*CHILDREN, "main") if cell.outcome.kind in (EXACT, NAMED)]:
        with tempfile.TemporaryDirectory() as folder:
            run[cell.outcome.kind] += 1
            try:
                _run_cell(cell, Path(folder), times, late)
            except Exception as error:  # an AssertionError is one
                faults.append(f"{cell}: {type(error).__name__}: {str(error)[:200]}")
    took = time.monotonic() - began
    print(f"the matrix: {len(faults)} of {sum(run.values())} cells failed in {took:.0f} s", file=sys.stderr, flush=True)
    return {
        "cells": dict(Counter(cell.outcome.kind for cell in cells(*WHO))),
        "cells run": dict(run),
        "not exact": faults,
        "detected late": late,
        "SIGSTOP timeout": TIMEOUT_S,
        "by fault, worker and dispatcher": {
            fault: {"to detection": _spread(of), "to next item": _spread(times["next item"][fault])}
            for fault, of in times["detection"].items()
        },
        "by fault, main: to the end of its last process": {
            fault: _spread(of) for fault, of in times["gone"].items() if fault != "SIGSTOP"
        },
    }


def _run_cell(cell: Cell, folder: Path, times: dict[str, defaultdict[str, list[float]]], late: list[str]) -> None:
    if cell.who == "main":
        with _quiet():
            times["gone"][cell.fault].append(check_main(cell, folder, "fork"))
        return
    if cell.outcome.kind == NAMED:
        error, got, expected = run_to_error(cell, folder)
        assert type(error).__name__ == cell.outcome.why, f"raised {error!r}"
        assert got == expected, "what came around the error is not the oracle's"
        return
    run, expected = run_exact(cell, folder)
    assert run.text == expected, "the stream is not the oracle's"
    assert run.struck_at is not None, "the fault did not strike"
    if run.to_detection_s is not None:
        times["detection"][cell.fault].append(run.to_detection_s)
        if run.to_detection_s > DETECTION_S + (TIMEOUT_S if cell.fault == "SIGSTOP" else 0):
            late.append(f"{cell}: {run.to_detection_s:.2f} s")
    if run.to_item_s is not None:
        times["next item"][cell.fault].append(run.to_item_s)


@contextmanager
def _quiet() -> Iterator[None]:
    """Meanwhile, nothing of this process and its children goes to stderr: tracebacks that are meant to be."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _spread(of: list[float]) -> dict[str, float]:
    if not of:
        return {}
    return {"n": len(of), "median": round(statistics.median(of), 4), "max": round(max(of), 4)}
