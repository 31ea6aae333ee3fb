"""The language model in short: real sources, a real kill, and losses compared to the last bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train_language_model.py"


@pytest.mark.timeout(1200)  # three processes that import torch: slow on a machine that is busy
def test_the_loss_curve_is_the_same_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "12", "--checkpoint-every", "4"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to the training process" in done.stdout
    assert "started again from its checkpoint of step " in done.stdout
    assert "losses and bytes of all 12 steps: equal, bit for bit" in done.stdout


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--steps", "8", "--checkpoint-every", "4"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "less than half of them" in done.stderr
