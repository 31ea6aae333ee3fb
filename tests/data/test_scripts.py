"""Real scripts moved by their import alone: the same samples as with torch's loader, and exact after being killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

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


def start(script: Path, folder: Path, name: str, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", str(script), str(folder), str(folder / f"{name}.pt"), "2", str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.splitlines()


def samples(lines: list[str], script: str) -> list[str]:
    """Without the losses: torch seeds augmentation by worker."""
    return [line.rpartition(" ")[0] for line in lines] if script == "images.py" else lines


@pytest.mark.parametrize("script", ["images.py", "buckets.py", "lines.py"])
def test_a_script_moved_by_its_import_has_the_same_samples_and_survives_a_kill(script: str, folder: Path) -> None:
    torchs = start(SCRIPTS / script, folder, "torch", 2)
    whole = start(moved(script, folder), folder, "whole", 2)
    theirs, ours = lines_of(torchs), lines_of(whole)
    assert samples(theirs, script) == samples(ours, script)

    killed = start(moved(script, folder), folder, "killed", 2)
    assert killed.stdout is not None
    seen = [killed.stdout.readline().rstrip("\n") for _ in range(13)]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert seen == ours[:13]
    workers = 2 if script == "lines.py" else 1  # what a map-style dataset gives does not depend on it
    rest = lines_of(start(moved(script, folder), folder, "killed", workers))
    began = len(ours) - len(rest)
    assert began in range(10, len(ours) + 1, 5), "it goes on after a step that was saved"
    assert rest == ours[began:]
