"""The matrix, cell by cell: processes that serve the main one. ``table.py`` says what must come of each."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from reading_services import Restart
from tests.faults.drive import TIMEOUT_S, run_exact, run_to_error
from tests.faults.inflict import DEADLY, Struck
from tests.faults.table import CHILDREN, ELSEWHERE, EXACT, NAMED, NOTHING, WHO, Cell, cells
from tests.laws.executors import make_loader, make_service, pids
from tests.pairs.covering import covering_rows
from torchpipe.errors import WorkerDiedError
from torchpipe.iter import IterableWrapper

CELLS = cells(*CHILDREN)
NAMED_CELLS = [cell for cell in CELLS if cell.outcome.kind == NAMED]
# Of the cells whose stream is exact: few in which each pair of process, fault and moment occurs.
_FACTORS = {name: sorted({getattr(cell, name) for cell in CELLS}) for name in ("who", "fault", "moment")}
SAMPLE = {Cell(**row) for row in covering_rows(_FACTORS, allowed=lambda row: Cell(**row).outcome.kind == EXACT)[0]}
DOES_NOT_RETURN = (*DEADLY, "SIGSTOP")


def sampled(chosen: Iterable[Cell], *sample: Cell) -> list[Any]:
    """As parameters: ``make test`` runs those of the sample, ``make test-nightly`` all."""
    return [pytest.param(cell, marks=[pytest.mark.sample] if cell in sample else [], id=str(cell)) for cell in chosen]


def check_exact(cell: Cell, folder: Path, context: str) -> None:
    run, expected = run_exact(cell, folder, context)
    assert run.text == expected
    assert run.struck_at is not None, "the fault did not strike"
    if cell.fault in DOES_NOT_RETURN and cell.moment != "while stopping":
        assert run.restarts == 1 or (cell.fault == "SIGSTOP" and run.restarts > 1)  # the others have a time limit, too
        assert run.detected_at is not None, "nothing was logged of the process that was struck"


@pytest.mark.parametrize("cell", sampled((cell for cell in CELLS if cell.outcome.kind == EXACT), *SAMPLE))
def test_the_stream_is_exact(cell: Cell, tmp_path: Path) -> None:
    check_exact(cell, tmp_path, "fork")


@pytest.mark.parametrize("cell", sampled(NAMED_CELLS, *NAMED_CELLS[::4]))
def test_the_error_is_named(cell: Cell, tmp_path: Path) -> None:
    error, got, expected = run_to_error(cell, tmp_path)
    assert got == expected
    assert type(error).__name__ == cell.outcome.why
    if isinstance(error, OSError):
        assert error.errno == errno.EMFILE
    else:
        assert isinstance(error, Struck)
    notes = "\n".join(error.__notes__)
    assert "torchpipe:" in notes


def test_one_that_is_stopped_before_its_first_sign_of_life_is_found() -> None:
    """Importing may take long, so silence alone says little; that it is stopped the system tells."""
    graph = IterableWrapper(range(9)).sharding_filter()
    with make_loader(graph, make_service(1, 1, context="spawn", timeout=TIMEOUT_S)) as loader:
        iterator = iter(loader)
        os.kill(pids(loader)[0], signal.SIGSTOP)  # it is seconds from having imported torch
        assert list(iterator) == list(range(9))
        assert loader.reading_service.restarts >= 1  # type: ignore[attr-defined]


REPEATED = [
    Cell(who, fault, moment)
    for who in CHILDREN
    for fault in ("SIGKILL", "exit 0")
    for moment in ("start", "epoch start", "mid-item", "during a snapshot", "last item")
    if (who, moment) not in [("worker", "during a snapshot"), ("dispatched worker", "during a snapshot")]
    if (fault, moment) not in [("SIGKILL", "start"), ("SIGKILL", "epoch start")]
] + [Cell("worker", "SIGSTOP", "mid-item"), Cell("worker", "SIGSEGV", "mid-item"), Cell("worker", "exit 1", "mid-item")]


@pytest.mark.parametrize("cell", sampled(REPEATED, *REPEATED[::4]))
def test_one_that_dies_there_again_and_again_is_named(cell: Cell, tmp_path: Path) -> None:
    error, got, expected = run_to_error(cell, tmp_path, always=True)
    assert got == expected
    assert isinstance(error, WorkerDiedError)
    name = "dispatcher" if cell.who == "dispatcher" else r"worker \d"
    cause = "exited with code " + cell.fault[-1] if cell.fault.startswith("exit") else f"was killed by {cell.fault}"
    cause = cause.replace("SIGSTOP", "SIGKILL")  # by whoever found it stopped
    where = {"start": "idle .starting", "epoch start": "on its way to item 0 of"}.get(
        cell.moment, r"making item \d+ of"
    )
    # By a signal that may come from outside, it takes a few more on a slow machine to rule out chance
    number = "3" if cell.fault.startswith("exit") else "[3-9]"
    assert re.match(rf"(?s){name} \(pid \d+\) {cause}.* while {where}.*it has died {number} times here", str(error)), (
        error
    )


ACCIDENTS = [Cell(who, "SIGKILL", moment) for who in CHILDREN for moment in ("start", "epoch start")]


@pytest.mark.parametrize("cell", sampled(ACCIDENTS, ACCIDENTS[0]))
def test_one_that_is_killed_before_it_has_begun_anything_ends_by_the_budget_alone(cell: Cell, tmp_path: Path) -> None:
    error, got, expected = run_to_error(cell, tmp_path, always=True, on_worker_death=Restart(max_restarts=6))
    assert got == expected
    assert isinstance(error, WorkerDiedError)
    name = "dispatcher" if cell.who == "dispatcher" else r"worker \d"
    cause = "was killed by SIGKILL.* while (idle|on its way to).*one death more than max_restarts=6 allows"
    assert re.match(rf"(?s){name} \(pid \d+\) {cause}", str(error)), error


@pytest.mark.parametrize("fault", ["SIGKILL", "exit 0"])
def test_one_that_every_snapshot_kills_gets_on_item_by_item(fault: str, tmp_path: Path) -> None:
    """What may be to blame is made one by one: each start gets an item further before a snapshot is due again."""
    error, got, expected = run_to_error(Cell("worker", fault, "during a snapshot"), tmp_path, always=True)
    assert error is None
    assert got == expected


OTHER_METHODS = [
    Cell("worker", "SIGKILL", "start"),
    Cell("dispatcher", "exit 0", "mid-item"),
    Cell("dispatched worker", "SIGSEGV", "last item"),
    Cell("worker", "SIGSTOP", "epoch boundary"),
    Cell("dispatcher", "exit 1", "during a snapshot"),
    Cell("worker", "SIGKILL", "while stopping"),
]


@pytest.mark.parametrize("cell", sampled(OTHER_METHODS, *OTHER_METHODS))
def test_the_stream_is_exact_under_forkserver(cell: Cell, tmp_path: Path) -> None:
    check_exact(cell, tmp_path, "forkserver")


@pytest.mark.parametrize("cell", sampled(OTHER_METHODS[:2], OTHER_METHODS[0]))
def test_the_stream_is_exact_under_spawn(cell: Cell, tmp_path: Path) -> None:
    check_exact(cell, tmp_path, "spawn")


def test_the_error_is_named_under_forkserver(tmp_path: Path) -> None:
    error, got, expected = run_to_error(Cell("worker", "exception", "start"), tmp_path, "forkserver")
    assert isinstance(error, Struck)
    assert got == expected


def test_every_cell_has_an_outcome_and_says_why_if_it_is_not_run() -> None:
    for cell in cells(*WHO):
        if cell.outcome.kind in (NOTHING, ELSEWHERE):
            assert cell.outcome.why, cell
        else:
            assert cell.outcome.kind in (EXACT, NAMED), cell
