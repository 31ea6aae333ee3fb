"""A test that hangs fails alone, with the stacks of all threads; the others run, and the run ends with a summary."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HANGING = """
import ctypes
import multiprocessing
import signal
import threading
import time

import pytest


def waits_in_another_thread(event):
    event.wait()


@pytest.mark.parametrize("number", range(3))
def test_before(number):
    pass


def test_that_hangs():
    event = threading.Event()
    threading.Thread(target=waits_in_another_thread, args=(event,), daemon=True).start()
    event.wait()


def test_between():
    pass


@pytest.fixture
def hangs_too():
    yield
    threading.Event().wait()


def test_whose_teardown_hangs(hangs_too):
    threading.Event().wait()
"""

IN_C = """

def test_that_hangs_in_c():
    # A child that would go on holding the pipes of this process
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(1000)  # without letting another thread run Python
"""

BEHIND = """

@pytest.mark.parametrize("number", range(5))
def test_behind(number):
    pass
"""

LEAVES_A_THREAD = """
import threading


def test_that_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""


def run_pytest(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(tests)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    limits = ["-p", "tests.limits", "--timeout", "2", "-o", "timeout_grace=3"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *limits, *options, str(folder / "test_inner.py")],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=False,
    )


def options_of_make() -> list[str]:
    """How ``make test`` distributes tests: some ways put a crashed one back into the queue."""
    script = (ROOT / "tools" / "run_tests.sh").read_text()
    processes = re.search(r'^tests (\d+) "not xla"', script, re.MULTILINE)
    distribution = re.search(r"-m pytest .*--dist (\w+)", script)
    assert processes is not None
    assert distribution is not None
    return ["-n", processes[1], "--dist", distribution[1]]


def test_hanging_tests_fail_alone_and_show_all_stacks(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGING + IN_C + BEHIND, *options_of_make())
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "3 failed, 9 passed, 1 error in" in shown, shown
    assert "FAILED test_inner.py::test_that_hangs - Failed: Timeout (>2 s)" in shown, shown
    assert "crashed while running 'test_inner.py::test_that_hangs_in_c'" in shown, shown
    for place in ("waits_in_another_thread", "test_that_hangs", "test_that_hangs_in_c", "hangs_too"):
        assert f"in {place}\n" in shown, shown


def test_in_one_process_too(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGING + BEHIND, "-p", "no:xdist")
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert "2 failed, 9 passed, 1 error in" in shown, shown
    assert "in waits_in_another_thread\n" in shown, shown


def test_in_one_process_what_cannot_be_interrupted_ends_the_run_with_its_stacks(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, HANGING + IN_C, "-p", "no:xdist", "-k", "in_c")
    assert done.returncode < 0
    assert "in test_that_hangs_in_c\n" in done.stderr
    assert "which cannot be interrupted, and 1 others" in done.stderr


def test_a_run_ends_though_a_test_has_left_a_thread(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LEAVES_A_THREAD, "-p", "no:xdist")
    assert "1 passed in" in done.stdout
    assert done.returncode < 0
    assert "in _shutdown\n" in done.stderr  # where Python waits for threads at its end
