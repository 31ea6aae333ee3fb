"""torchft: a replica that is killed comes back at the position of the others; nobody's samples are repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.trainers.killed import lineage
from tests.trainers.conftest import Trainings

RUNS = "tests.trainers.torchft_runs"
STEPS, TOGETHER, ALONE = 150, 10, 5


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_replica_dies_and_comes_back(trainings: Trainings, tmp_path: Path) -> None:
    """Each replica makes every step that it takes part in with the batch of its share that belongs to that step."""
    trainings.run(tmp_path / "shares", "shares", steps=STEPS)
    trainings.run(tmp_path / "run", "train", ranks=3, steps=STEPS)
    wanted = [lineage(tmp_path / "shares" / f"journal.{group}") for group in (0, 1)]
    got = [
        read(tmp_path / "run" / "journal.0.last"),
        read(tmp_path / "run" / "journal.1.first") + read(tmp_path / "run" / "journal.1.last"),
    ]
    for group in (0, 1):
        for step in got[group]:
            assert {**step, "epoch": 0} == wanted[group][step["step"]]
    survivor, victim = ([step["step"] for step in steps] for steps in got)
    assert survivor == list(range(STEPS))
    away = sorted(set(range(victim[0], STEPS)) - set(victim))
    assert victim == sorted(set(victim))
    assert away[0] == victim[0] + TOGETHER
    assert len(away) >= ALONE
    assert victim[-1] == STEPS - 1
    together = {step["step"] for step in got[0] if step["epoch"] == 2}  # by the number of those who took part
    assert together == set(victim)
