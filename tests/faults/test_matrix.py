"""The matrix, cell by cell: processes that serve the main one. ``table.py`` says what must come of each."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.faults.drive import run_exact, run_to_error
from tests.faults.inflict import DEADLY, Struck
from tests.faults.table import CHILDREN, EXACT, NAMED, Cell, cells

CELLS = cells(*CHILDREN)
DOES_NOT_RETURN = (*DEADLY, "SIGSTOP")


def check_exact(cell: Cell, folder: Path, context: str) -> None:
    run, expected = run_exact(cell, folder, context)
    assert run.text == expected
    assert run.struck_at is not None, "the fault did not strike"
    if cell.fault in DOES_NOT_RETURN and cell.moment != "while stopping":
        assert run.restarts == 1
        assert run.detected_at is not None, "nothing was logged of the process that was struck"


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.outcome.kind == EXACT], ids=str)
def test_the_stream_is_exact(cell: Cell, tmp_path: Path) -> None:
    check_exact(cell, tmp_path, "fork")


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.outcome.kind == NAMED], ids=str)
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
