"""How the tests are run: ``make test`` runs both parts whatever comes of the first, also where Ctrl-C is ignored."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import os
import signal
import subprocess
import sys

import pytest

from tests import conftest


def test_in_process():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_in_a_child():
    code = "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_{outcome}():
    assert {outcome!r} == "passes"


@pytest.mark.xla
def test_with_xla_{xla}():
    assert {xla!r} == "passes"
"""


def run_tests(folder: Path, outcome: str, xla: str, *options: str, marks: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(TESTS.format(outcome=outcome, xla=xla))
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider"]
    script = [str(ROOT / "tools" / "run_tests.sh"), sys.prefix, *settings, "-p", "tests.limits", *options]
    # As a shell starts a job in the background of a script
    ignoring = ["sh", "-c", 'trap "" INT; "$@"', "sh", *script, str(folder / "test_inner.py")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        ignoring,
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT), "MARKS": marks},
        check=False,
    )


@pytest.mark.parametrize(("outcome", "xla"), [("fails", "passes"), ("passes", "fails")])
def test_both_parts_run_and_either_failure_counts(tmp_path: Path, outcome: str, xla: str) -> None:
    done = run_tests(tmp_path, outcome, xla)
    words = {"passes": "passed", "fails": "FAILED (pytest ended with 1)"}
    said = [f"tests without XLA: {words[outcome]}"]
    if importlib.util.find_spec("torch_xla") is not None:
        said.append(f"tests with XLA: {words[xla]}")
    else:
        xla = "passes"
    assert done.stdout.splitlines()[-len(said) :] == said, done.stdout + done.stderr
    assert (done.returncode == 0) == (outcome == xla == "passes")
    counts = "3 passed in" if outcome == "passes" else "1 failed, 2 passed in"
    assert counts in done.stdout, done.stdout  # those of Ctrl-C, which the shell has told this run to ignore, pass


def test_arguments_may_choose_tests_of_one_part_only(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "passes", "passes", "-k", "in_process")
    assert "tests without XLA: passed" in done.stdout
    assert "tests with XLA: FAILED" not in done.stdout
    assert done.returncode == 0


def test_marks_choose_among_the_tests_of_both_parts(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "fails", "fails", marks="xla and not xla")
    assert "tests without XLA: none chosen" in done.stdout
    assert done.returncode == 1  # nothing has passed
    done = run_tests(tmp_path, "passes", "fails", marks="not xla")
    assert "tests without XLA: passed" in done.stdout
    assert "tests with XLA: FAILED" not in done.stdout
    assert done.returncode == 0
