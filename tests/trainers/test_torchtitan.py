"""torchtitan: its contract for data loaders, its checkpoints, and the end of the data in mid-accumulation."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.trainers.killed import DIGITS, lineage
from tests.trainers.conftest import Trainings

RUNS = "tests.trainers.torchtitan_runs"


@pytest.mark.parametrize("kind", ["map", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "graph"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, ranks=2, kills=[33, 50])


@pytest.mark.parametrize("kind", ["graph", "shards", "dealt"])
def test_peers_have_the_same_batches(kind: str, check_exact: Callable[..., None], tmp_path: Path) -> None:
    """Two data ranks with two peers each."""
    check_exact("train", kind=kind, ranks=4, tp=2, epochs=1, kills=[23], each_once=False)
    ranks = [lineage(tmp_path / "cut" / f"journal.{rank}") for rank in range(4)]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert sorted(number for run in ranks[::2] for step in run for number in step["ids"]) == [*range(DIGITS)]


def test_a_loader_that_divides_among_peers_is_refused(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "refused", ranks=2)


def test_asynchronous_checkpoints(check_exact: Callable[..., None]) -> None:
    check_exact("train", kind="graph", ranks=2, kills=[33, 50], async_mode="async")


def test_a_step_without_all_its_batches_is_not_made(check_exact: Callable[..., None]) -> None:
    """150 batches by 4: the last two are taken, and not trained on."""
    check_exact("train", kind="map", kills=[73], accumulate=4, interval=3, each_once=False)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4)])
def test_a_step_has_the_same_microbatches_under_another_degree(
    before: int, after: int, trainings: Trainings, tmp_path: Path
) -> None:
    """The page's class, with what torchtitan's main gives it; the data begin again within the steps."""
    page = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Text" in block)
    steps = []
    for name, parts in (("whole", [(1, None)]), ("cut", [(before, 8), (after, None)])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shown.py").write_text(block)
        lines = (json.dumps({"text": " ".join(f"{number}.{n}" for n in range(number % 40))}) for number in range(1, 60))
        (tmp_path / name / "text.jsonl").write_text("\n".join(lines))
        for ranks, kill_at in parts:
            trainings.run(tmp_path / name, "flat", ranks=ranks, steps=30, kill_at=kill_at, killed=kill_at is not None)
        seen = [json.loads(line) for path in (tmp_path / name).glob("seen.*") for line in path.read_text().splitlines()]
        steps.append({step: {json.dumps(rest) for number, *rest in seen if number == step} for step in range(1, 31)})
    whole, cut = steps
    assert cut == whole
    assert all(len(parts) == 4 for parts in whole.values())


def test_the_contract(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "contract")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("torchtitan")
