"""Elastic runs: torchrun with 4 ranks, one killed, started again by torchrun itself; then with 3, 2 and 1."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.services import elastic_script
from tests.services.ranks import FixedRank
from tests.warm import Warm
from torchpipe import DataLoader2

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]


def torchrun(
    warm: Warm, folder: Path, name: str, ranks: int, restarts: int, kills: dict[str, list[int]]
) -> subprocess.CompletedProcess[str]:
    """A run of so many ranks; ``kills``: of each start, [which rank is killed, after which step]."""
    command = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(restarts), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "tests.services.elastic_script", str(folder), name, json.dumps(kills)]
    # Else those that torchrun starts again look for each other where the killed ones were (pytorch#135712)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return warm.run(command, cwd=ROOT, env=environment)


def seen(folder: Path, segment: str, ranks: int) -> list[Any]:
    """What the ranks of a segment had up to its last checkpoint, in the order of steps and ranks."""
    steps = int((folder / f"saved.{segment}").read_text())
    noted = [(folder / f"seen.{segment}.{rank}").read_text().splitlines() for rank in range(ranks)]
    assert all(len(lines) >= steps for lines in noted)
    return [json.loads(line) for step in zip(*(lines[:steps] for lines in noted)) for line in step]


def test_ranks_are_killed_and_other_numbers_of_them_go_on(warm: Warm, tmp_path: Path) -> None:
    runs = [
        ("four", 4, 1, {"0": [2, 3], "1": [1, 3]}),
        ("three", 3, 0, {"0": [1, 3]}),
        ("two", 2, 0, {"0": [0, 3]}),
        ("one", 1, 0, {}),
    ]
    for name, ranks, restarts, kills in runs:
        done = torchrun(warm, tmp_path, name, ranks, restarts, kills)
        assert (done.returncode != 0) == bool(kills), done.stderr[-5000:]
    parts = [
        seen(tmp_path, *part) for part in (("four.0", 4), ("four.1", 4), ("three.0", 3), ("two.0", 2), ("one.0", 1))
    ]
    assert [len(part) for part in parts[:4]] == [8, 8, 6, 4], "each was killed in the step after a checkpoint"
    had = [pair for part in parts for pair in part]
    with DataLoader2(elastic_script.elastic_graph(), reading_service=FixedRank(0, 1, 4, "drop")) as loader:
        loader.seed(7)
        items = [repr(item) for _ in range(elastic_script.EPOCHS) for item in loader]
    assert [item for item, _ in had if item] == items
    dealt = [batch for _, batch in had if batch]
    first = [index for batch in dealt[:48] for index in batch]
    assert sorted(first) == [index**2 for index in range(96)]
    assert first != sorted(first)
    later = [index for batch in dealt[48:96] for index in batch]
    assert len(set(later)) == len(later)
