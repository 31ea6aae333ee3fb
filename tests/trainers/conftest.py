"""Starts the processes of the trainings, and compares interrupted runs with uninterrupted ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.trainers.killed import DIGITS, lineage

ROOT = Path(__file__).parents[2]


class Trainings:
    """Runs the functions of one module, in a process for each rank, forked from one that has imported it."""

    def __init__(self, module: str) -> None:
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.trainers.zygote", module],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert json.loads(self._zygote.stdout.readline()) == "ready"  # type: ignore[union-attr]

    def run(self, folder: Path, function: str, *, ranks: int = 1, killed: bool = False, **arguments: Any) -> None:
        """One process (or one for each rank) to its end: by SIGKILL if ``killed``, else in good order."""
        job = {"function": function, "arguments": {"folder": str(folder), "ranks": ranks, **arguments}}
        self._run(folder, job, ranks, -signal.SIGKILL if killed else 0)

    def run_script(self, folder: Path, script: Path) -> str:
        """A script as it stands, to its end in good order. Returns what it has printed."""
        self._run(folder, {"script": str(script)}, 1, 0)
        return (folder / "log.0").read_text()

    def _run(self, folder: Path, job: dict[str, Any], ranks: int, code: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = str(folder / "log.{rank}")
        job |= {"ranks": ranks, "port": port, "log": log}
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(job) + "\n")
        self._zygote.stdin.flush()
        codes = json.loads(self._zygote.stdout.readline())
        if codes != [code] * ranks:
            logs = "\n".join(f"--- rank {rank}\n{Path(log.format(rank=rank)).read_text()}" for rank in range(ranks))
            pytest.fail(f"the ranks ended with {codes}: {job}\n{logs}", pytrace=False)

    def close(self) -> None:
        self._zygote.communicate("")


@pytest.fixture(scope="module")
def trainings(request: pytest.FixtureRequest) -> Iterator[Trainings]:
    started = Trainings(request.module.RUNS)
    yield started
    started.close()


@pytest.fixture
def check_exact(trainings: Trainings, tmp_path: Path) -> Callable[..., None]:
    """Runs a function uninterrupted, and with a SIGKILL before each step of ``kills``: the samples are the same."""

    def check(function: str, *, kills: list[int], ranks: int = 1, epochs: int = 3, each_once: bool = True, **more: Any):
        trainings.run(tmp_path / "whole", function, ranks=ranks, epochs=epochs, **more)
        for kill_at in kills:
            trainings.run(tmp_path / "cut", function, ranks=ranks, epochs=epochs, kill_at=kill_at, killed=True, **more)
        trainings.run(tmp_path / "cut", function, ranks=ranks, epochs=epochs, **more)
        whole, cut = (
            [lineage(tmp_path / name / f"journal.{rank}") for rank in range(ranks)] for name in ("whole", "cut")
        )
        assert_same(cut, whole)
        if each_once:
            for epoch in range(epochs):
                got = sorted(
                    number for run in whole for step in run if step["epoch"] == epoch for number in step["ids"]
                )
                assert got == list(range(DIGITS)), f"epoch {epoch} has not every digit once: {len(got)} arrived"

    return check


def assert_same(cut: list[list[dict[str, Any]]], whole: list[list[dict[str, Any]]]) -> None:
    """Rank by rank and step by step: identities, and the digest over the augmented pixels."""
    for rank, (ours, wanted) in enumerate(zip(cut, whole, strict=True)):
        for one, other in zip(ours, wanted):
            assert one == other, f"rank {rank}, step {one['step']}: {str(one)[:150]} and not {str(other)[:150]}"
        assert len(ours) == len(wanted), f"rank {rank}: {len(ours)} steps, and not {len(wanted)}"


@pytest.fixture
def check_shown(trainings: Trainings, tmp_path: Path) -> Callable[[str], None]:
    """Runs the example ``with_<name>.py``, and the blocks of docs/trainers.md that import ``integrations.<name>``."""

    def check(name: str) -> None:
        shown = trainings.run_script(tmp_path / "example", ROOT / "examples" / "trainers" / f"with_{name}.py")
        assert "10000 samples in 2 epochs: 0 lost, 0 repeated" in shown
        assert "order and augmented pixels of all 100 steps: the same" in shown
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "trainers.md").read_text(), re.DOTALL)
        mine = [block for block in blocks if f"integrations.{name} " in block]
        assert mine, f"docs/trainers.md does not show {name}"
        for number, block in enumerate(mine):
            script = tmp_path / f"block{number}.py"
            script.write_text(f"import os\nos.chdir({str(tmp_path)!r})\n{block}")
            trainings.run_script(tmp_path / f"block{number}", script)

    return check
