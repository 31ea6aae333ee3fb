"""``tools/gpu_check.sh`` where there is no GPU: it names what it lacks, does the rest in time, and proves nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.harness.forked import run_forked
from tools import gpu_check

ROOT = Path(__file__).resolve().parents[2]


def pins(name: str) -> dict[str, set[str]]:
    """The versions of each package; several where it depends on the Python."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / name).read_text().splitlines():
        if pinned := re.match(r"([\w.-]+)==([\w.+]+)", line):
            found.setdefault(pinned[1], set()).add(pinned[2])
    return found


def test_its_packages_are_pinned_as_elsewhere() -> None:
    for name, versions in pins("tools/gpu_check.txt").items():
        known = pins("constraints.txt").get(name, set()) | pins("benchmarks/constraints-peers.txt").get(name, set())
        assert versions <= known, name


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_without_cuda_it_says_so_and_does_the_rest(tmp_path: Path) -> None:
    command = [str(ROOT / "tools" / "gpu_check.sh"), str(tmp_path / "new"), "--parts", "cuda tests,device,workers"]
    command += ["--workloads", "p3", "--workers", "1", "--rounds", "1", "--seconds", "0.02", "--minutes", "3"]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "cuda tests: no CUDA here" in done.stdout
    document = json.loads((tmp_path / "new" / "gpu_check.json").read_text())
    assert document["cuda tests"] == document["p8c"] == {"skipped": "no CUDA here"}
    assert document["errors"] == {}
    assert document["not reached"] == document["workers"]["p3"]["wrong"] == []
    lines = document["workers"]["p3"]["lines"]
    assert [[point[0] for point in lines[peer]] for peer in ("torchpipe", "torch")] == [[1], [1]]
    assert all(result["bytes_per_s"] > 0 for result in document["results"])


def test_a_part_that_goes_wrong_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what the time is too short for is named."""
    arguments = ["--parts", "workers,device,other tests", "--device", "cpu", "--workers", "no number"]
    code = gpu_check.main([str(tmp_path), *arguments, "--minutes", "0.5"])
    document, said = json.loads((tmp_path / "gpu_check.json").read_text()), capsys.readouterr().out
    assert code == 1
    for name in ("workers", "device"):
        assert "ValueError" in document["errors"][name]
        assert f"{name} went wrong: ValueError" in said
    assert document["not reached"] == ["other tests"]
    assert document["seconds"].keys() == {"workers", "device", "other tests"}


OUTCOMES = """
import pytest

def test_passes(): pass

def test_fails(): assert 1 == 2

@pytest.mark.skip
def test_is_skipped(): pass

@pytest.fixture
def torn():
    yield
    raise OSError("planted")

def test_fails_at_its_end(torn): pass
"""


def test_what_becomes_of_each_test_is_noted(tmp_path: Path) -> None:
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    (tmp_path / "test_unreadable.py").write_text("import no_such_module")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPU_CHECK_REPORTS": str(tmp_path / "reports")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tools.gpu_tests",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "-n",
        "1",
    ]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    found = gpu_check.counted(tmp_path / "reports")
    failures = found.pop("failures")
    assert found == {"passed": 1, "failed": 3, "skipped": 1}
    told = {failure["test"].split("::")[-1]: failure["message"] for failure in failures}
    assert "no_such_module" in told["test_unreadable.py"]
    assert "assert 1 == 2" in told["test_fails"]
    assert "planted" in told["test_fails_at_its_end"]


def test_a_measurement_in_a_forked_process_that_fails_says_why() -> None:
    result = run_forked("p2", "no such peer", 0.1, {"workers": 1}, limit_s=60)
    assert result["error"].startswith("ValueError: there is no peer")
    assert (result["workload"], result["workers"]) == ("p2", 1)


def test_a_measurement_that_takes_too_long_is_ended() -> None:
    result = run_forked("p2", "torch", 300.0, {"workers": 1}, limit_s=1.0)
    assert result["error"] == "no result within 1 s: it hangs, or is far too slow"
