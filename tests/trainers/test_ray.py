"""Ray Train: workers that are killed are started again from the last checkpoint, which rank 0 has reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.trainers.killed import lineage
from tests.trainers.conftest import Trainings, assert_same

RUNS = "tests.trainers.ray_runs"


@pytest.mark.parametrize("kind", ["map", "actors"])
def test_workers_killed_in_mid_epoch_and_at_its_end(kind: str, trainings: Trainings, tmp_path: Path) -> None:
    """``actors``: each of them loads with an actor of its own, which ends with it."""
    trainings.run(tmp_path / "alone", "alone", kind="map", epochs=2, workers=2)
    trainings.run(tmp_path / "ray", "train", kind=kind, epochs=2, workers=2, kills=[13, 25])
    ours, wanted = ([lineage(tmp_path / name / f"journal.{rank}") for rank in (0, 1)] for name in ("ray", "alone"))
    assert_same(ours, wanted)
    starts = [line for line in (tmp_path / "ray" / "journal.0").read_text().splitlines() if "start" in line]
    assert starts == ['{"start": 0}', '{"start": 10}', '{"start": 25}']
