"""L2, L6 through a script of a user's: random histories of runs whose classes stand in ``__main__``."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "users_script.py"


def play(histories: int, *method: str) -> None:
    first = 0 if os.environ.get("CI") else random.SystemRandom().randrange(1 << 20)
    command = [sys.executable, str(SCRIPT), str(first), str(first + histories), *method]
    paths = os.pathsep.join([str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr[-2000:]


def test_L2_histories_in_process() -> None:
    play(30)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_L2_L6_histories_with_workers(method: str) -> None:
    play(3, method)


@pytest.mark.nightly
def test_L2_many_histories_in_process() -> None:
    play(3000)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_L2_L6_many_histories_with_workers(method: str) -> None:
    play({"fork": 200, "forkserver": 60, "spawn": 10}[method], method)
