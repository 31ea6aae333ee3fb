"""Ranks with workers in Ray: each rank is a driver with actors of its own, and their streams make up one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest

from tests.actors.rank_script import graph
from torchpipe import DataLoader2, InProcessReadingService

ROOT = Path(__file__).parents[2]


def run(kind: str, cluster: Any, folder: Path, ranks: int, steps: int) -> list[list[str]]:
    """The items of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.actors.rank_script", kind, cluster.address, str(folder), str(steps)]
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = [
        subprocess.Popen(command, cwd=ROOT, env=os.environ | job | {"RANK": str(rank)}, text=True, stdout=-1, stderr=-1)
        for rank in range(ranks)
    ]
    ended = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, ended
    found: list[list[str]] = literal_eval(ended[0][0].splitlines()[-1])
    return found


@pytest.mark.nightly
def test_L3_ranks_with_ray_go_on_as_one_with_processes(cluster: Any, tmp_path: Path) -> None:
    two = run("ray", cluster, tmp_path, 2, 20)
    (rest,) = run("processes", cluster, tmp_path, 1, 0)
    oracle: DataLoader2[Any] = DataLoader2(graph(), reading_service=InProcessReadingService(num_shards=4))
    oracle.seed(5)
    assert [item for step in zip(*two) for item in step] + rest == list(oracle)
