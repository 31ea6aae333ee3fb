"""A test that hangs is ended and shows what every thread was doing, with and without pytest-xdist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

HANGING = """
import threading

def waits_in_another_thread(event):
    event.wait()

def test_that_hangs():
    event = threading.Event()
    threading.Thread(target=waits_in_another_thread, args=(event,), daemon=True).start()
    event.wait()
"""


@pytest.mark.parametrize("options", [["-p", "no:xdist"], ["-n", "1"]], ids=["one process", "xdist"])
def test_a_hanging_test_is_ended_and_shows_all_stacks(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGING)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    limits = ["--timeout", "3", "-o", "faulthandler_timeout=2"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *limits, *options, str(tmp_path / "test_hangs.py")],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode != 0, shown
    assert "waits_in_another_thread" in shown, shown
    assert "in test_that_hangs" in shown, shown
