"""Real scripts moved by their import alone: the same samples as with torch's loader, and exact after being killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from tests.sources import wait_until
from tests.warm import Warm

SCRIPTS = Path(__file__).parent / "scripts"
TORCH = "from torch.utils.data import DataLoader"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of 8x8 pixels in three classes, and four files of lines."""
    draw = random.Random(1)
    for label in "abc":
        (tmp_path / label).mkdir()
        for number in range(15):
            Image.frombytes("L", (8, 8), draw.randbytes(64)).save(tmp_path / label / f"{number:02}.png")
    for number in range(4):
        lines = [f"file{number}-line{line}\n" for line in range(20 + number)]
        (tmp_path / f"{number}.txt").write_text("".join(lines))
    return tmp_path


def moved(script: str, folder: Path) -> Path:
    """The script with torchpipe's loader: one line differs."""
    text = (SCRIPTS / script).read_text()
    others = next(line for line in text.splitlines() if line.startswith(TORCH))
    rest = others.removeprefix(TORCH).lstrip(", ")
    imports = "from torchpipe import DataLoader" + (f"\nfrom torch.utils.data import {rest}" if rest else "")
    path = folder / f"moved_{script}"
    path.write_text(text.replace(others, imports))
    return path


def command(script: Path, folder: Path, name: str, workers: int) -> list[str]:
    return [str(script), str(folder), str(folder / f"{name}.pt"), "2", str(workers)]


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def samples(lines: list[str], script: str) -> list[str]:
    """Without the losses: torch seeds augmentation by worker."""
    return [line.rpartition(" ")[0] for line in lines] if script == "images.py" else lines


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["images.py", "buckets.py", "lines.py"])
def test_a_script_moved_by_its_import_has_the_same_samples_and_survives_a_kill(
    script: str, warm: Warm, folder: Path
) -> None:
    changed = moved(script, folder)
    both = [command(SCRIPTS / script, folder, "torch", 2), command(changed, folder, "whole", 2)]
    theirs, ours = map(lines_of, warm.run_together(both, cwd=folder))
    assert samples(theirs, script) == samples(ours, script)

    def kill(pid: int, said: Path) -> None:
        wait_until(lambda: said.exists() and said.read_text().count("\n") >= 13)
        os.kill(pid, signal.SIGKILL)

    killed = warm.run(command(changed, folder, "killed", 2), cwd=folder, meanwhile=kill)
    assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr  # on a busy machine it may be through by then
    assert killed.stdout.splitlines()[:13] == ours[:13]
    workers = 2 if script == "lines.py" else 1  # what a map-style dataset gives does not depend on it
    rest = lines_of(warm.run(command(changed, folder, "killed", workers), cwd=folder))
    began = len(ours) - len(rest)
    assert began in range(10, len(ours) + 1, 5), "it goes on after a step that was saved"
    assert rest == ours[began:]


@pytest.mark.nightly
def test_a_loop_that_torch_is_asked_to_compile_goes_as_usual(warm: Warm, tmp_path: Path) -> None:
    script = SCRIPTS / "compiled_loop.py"
    done = warm.run([str(script)], cwd=tmp_path)
    lines = lines_of(done)
    assert len(lines) == 7
    assert all(line.endswith(": True") for line in lines), lines
    assert "Traceback" not in done.stderr
