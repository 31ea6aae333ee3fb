"""The table in short: a real table, a real kill, and rows and losses compared to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import ALONE
from tests.warm import Warm

SCRIPT = Path(__file__).parents[2] / "examples" / "train_table.py"


@pytest.mark.timeout(1200)  # three processes that import torch: slow on a machine that is busy
def test_no_row_is_lost_or_repeated_by_a_kill(warm: Warm, tmp_path: Path) -> None:
    command = [str(SCRIPT), "--rows", "12000", "--checkpoint-every", "7"]
    done = warm.run(command, cwd=tmp_path, env=ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to the training process" in done.stdout
    assert "started again from its checkpoint of step " in done.stdout
    assert " rows in each of 2 epochs: 0 lost, 0 repeated" in done.stdout
    assert "equal, bit for bit" in done.stdout
