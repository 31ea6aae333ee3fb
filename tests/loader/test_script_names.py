"""Classes of the script that runs: the same in each process, however that was started, and however the script was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("names_script.py")
ROOT = SCRIPT.parents[2]
WAYS = {
    "a file": [str(SCRIPT)],
    "a module": ["-m", "tests.loader.names_script"],
    "no file": ["-c", SCRIPT.read_text()],
}


def run(folder: Path, method: str, way: str = "a file") -> None:
    command = [sys.executable, *WAYS[way], str(folder), method]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr[-3000:]


def test_classes_of_the_script_are_the_same_in_each_process_and_in_states(tmp_path: Path) -> None:
    for method in ("in process", "fork", "forkserver"):
        run(tmp_path, method)


def test_so_are_those_of_a_program_that_no_worker_can_import(tmp_path: Path) -> None:
    run(tmp_path, "forkserver", "no file")


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("way", WAYS)
def test_classes_of_the_script_however_it_is_started(way: str, method: str, tmp_path: Path) -> None:
    run(tmp_path, method, way)


@pytest.mark.parametrize("method", ["in process", "fork", "forkserver"])
def test_a_lock_is_that_of_the_script_in_each_process(method: str) -> None:
    held = [sys.executable, str(SCRIPT.with_name("held_script.py"))]
    done = subprocess.run([*held, method], check=False, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr[-3000:]


def test_a_lock_that_a_process_does_not_have_is_refused_by_name() -> None:
    held = [sys.executable, str(SCRIPT.with_name("held_script.py")), "forkserver", "behind the guard"]
    done = subprocess.run(held, check=False, capture_output=True, text=True, cwd=ROOT)
    assert "LOCK of the script is a lock, and the script has none in this process" in done.stderr
