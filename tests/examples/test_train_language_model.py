"""The language model in short: real sources, a real kill, and losses compared to the last bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples import ALONE
from tests.warm import Warm

SCRIPT = Path(__file__).parents[2] / "examples" / "train_language_model.py"


@pytest.mark.timeout(1200)  # three processes that import torch: slow on a machine that is busy
def test_the_loss_curve_is_the_same_after_a_kill(warm: Warm, tmp_path: Path) -> None:
    command = [str(SCRIPT), "--steps", "12", "--checkpoint-every", "4"]
    done = warm.run(command, cwd=tmp_path, env=ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIGKILL to the training process" in done.stdout
    assert "started again from its checkpoint of step " in done.stdout
    assert "losses and bytes of all 12 steps: equal, bit for bit" in done.stdout


def test_too_few_steps_are_refused(warm: Warm, tmp_path: Path) -> None:
    command = [str(SCRIPT), "--steps", "8", "--checkpoint-every", "4"]
    done = warm.run(command, cwd=tmp_path, env=ALONE)
    assert done.returncode == 2
    assert "less than half of them" in done.stderr
