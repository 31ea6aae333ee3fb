"""The demo in full, two epochs on the CPU: real images, real kills, an exact comparison."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from examples.train_digits import _alive
from tests.examples import ALONE
from tests.warm import Warm

SCRIPT = Path(__file__).parents[2] / "examples" / "train_digits.py"


@pytest.mark.timeout(1200)  # five processes that import torch: slow on a machine that is busy
def test_the_demo_loses_and_repeats_nothing(warm: Warm, tmp_path: Path) -> None:
    command = [str(SCRIPT), "--device", "cpu", "--epochs", "2", "--min-accuracy", "0.8"]
    done = warm.run(command, cwd=tmp_path, env=ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8000 samples in 2 epochs: 0 lost, 0 repeated, same order" in done.stdout
    assert "each of 4000 digits once in every epoch: yes" in done.stdout
    assert "digest over identities and augmented pixels: equal" in done.stdout
    assert "SIGKILL to worker process" in done.stdout
    assert "SIGKILL to the training process" in done.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_one_epoch_is_too_few(warm: Warm, tmp_path: Path) -> None:
    done = warm.run([str(SCRIPT), "--epochs", "1"], cwd=tmp_path)
    assert done.returncode == 2
    assert "at least 2, got 1" in done.stderr


def ends_meanwhile() -> None:
    """Ask of a process whether it lives until it does not, while it ends and is waited for."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(reading, 1)
        os._exit(0)
    assert _alive(pid)

    def end() -> None:
        os.write(writing, b"x")
        os.waitpid(pid, 0)

    thread = threading.Thread(target=end)
    thread.start()
    while _alive(pid):
        pass
    thread.join()
    os.close(reading)
    os.close(writing)


def test_a_process_that_ends_while_its_state_is_read_has_ended() -> None:
    """Every third one did so on two cores."""
    for _ in range(60):
        ends_meanwhile()
