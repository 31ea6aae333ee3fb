"""Scripts that workers cannot import, as those do that are not forked: told by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from reading_services import MultiProcessingReadingService
from torchpipe import DataLoader2
from torchpipe.iter import IterableWrapper

def double(x):
    return 2 * x

{guard}
    service = MultiProcessingReadingService({workers}, sys.argv[1])
    with DataLoader2(IterableWrapper(range(6)).sharding_filter().map(double), reading_service=service) as loader:
        try:
            print(*loader)
        finally:
            print("restarts:", service.restarts)
"""


def run(warm: Warm, folder: Path, method: str, guard: str, workers: int = 2) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT.format(guard=guard, workers=workers))
    return warm.run([str(script), method], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_a_missing_guard_is_named(warm: Warm, tmp_path: Path) -> None:
    done = run(warm, tmp_path, "forkserver", "if True:", workers=1)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("torchpipe.errors.WorkerDiedError: worker 0 ")
    assert "it has died 3 times here" in last
    assert 'put what the script does behind `if __name__ == "__main__":`' in last
    assert done.stdout.splitlines()[-1] == "restarts: 2"


FOR_EACH = """
import os
if child := os.fork():  # that goes on with the first method, and this one with the next
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    del sys.argv[1]
if __name__ == "__main__":"""


def test_a_script_on_standard_input_is_no_file_to_import(tmp_path: Path) -> None:
    methods = ["forkserver", "spawn"]
    done = subprocess.run(
        [sys.executable, "-", *methods],
        input=SCRIPT.format(guard=FOR_EACH, workers=2),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    errors = [line for line in lines if line.startswith("RuntimeError: ")]
    assert (len(errors), errors[-1]) == (len(methods), lines[-1]), done.stderr
    for error in errors:
        assert "worker 0 cannot be started: it imports the script, and " in error
        assert f"{tmp_path / '<stdin>'} is no file" in error
    assert done.stdout == "restarts: 0\n" * 2


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_working_directory_that_is_gone(method: str, warm: Warm, tmp_path: Path) -> None:
    gone = "import os, tempfile\nwith tempfile.TemporaryDirectory() as folder: os.chdir(folder)\nif True:"
    done = run(warm, tmp_path, method, gone)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("FileNotFoundError: worker 0 cannot be started: it begins in this process")
    assert done.stdout == "restarts: 0\n"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_with_its_guard_the_script_runs(method: str, warm: Warm, tmp_path: Path) -> None:
    workers = 1 if method == "spawn" else 2  # each of whose workers imports torch anew
    done = run(warm, tmp_path, method, 'if __name__ == "__main__":', workers)
    assert (done.stdout, done.stderr) == ("0 2 4 6 8 10\nrestarts: 0\n", "")
