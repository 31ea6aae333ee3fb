"""Lightning's Trainer: kills in mid-epoch and at the end of one, and what else Lightning does to a loader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.trainers.killed import DIGITS, lineage
from tests.trainers.conftest import Trainings, assert_same

RUNS = "tests.trainers.lightning_runs"


@pytest.mark.parametrize("kind", ["map", "plain", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("fit", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "dealt", "graph", "stream"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("fit", kind=kind, ranks=2, kills=[33, 50])


def test_another_number_of_ranks(trainings: Trainings, tmp_path: Path) -> None:
    """Lightning counts an epoch's batches by ranks, and learns of its end from the loader: no sample comes twice."""
    trainings.run(tmp_path, "fit", kind="dealt", epochs=3, ranks=2, kill_at=13, killed=True, every=10)
    trainings.run(tmp_path, "fit", kind="dealt", epochs=3, ranks=1)
    rank_0, rank_1 = lineage(tmp_path / "journal.0"), lineage(tmp_path / "journal.1")[:10]
    for epoch in range(3):
        got = [number for step in rank_0 + rank_1 if step["epoch"] == epoch for number in step["ids"]]
        assert sorted(got) == list(range(DIGITS))


@pytest.mark.parametrize("kind", ["map", "unsized"])
def test_checkpoints_after_validation(kind: str, check_exact: Callable[..., None]) -> None:
    """They are taken before Lightning counts the epoch: it takes it for unfinished, and begins it in vain."""
    check_exact("fit", kind=kind, validate=True, kills=[50, 73, 100])


@pytest.mark.parametrize("kind", ["map", "unsized"])
@pytest.mark.parametrize(
    "options",
    [
        {"limit_train_batches": 30},
        {"accumulate_grad_batches": 3},
        {"max_steps": 130},
        {"validate": True, "val_check_interval": 15, "limit_val_batches": 2},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_options(kind: str, options: dict[str, Any], check_exact: Callable[..., None]) -> None:
    whole = options.keys() & {"limit_train_batches", "max_steps"}
    check_exact("fit", kind=kind, kills=[45, 60] if whole else [73, 100], each_once=not whole, **options)


@pytest.mark.parametrize("kind", ["map", "unsized"])
def test_a_checkpoint_of_the_last_step_of_an_epoch_cut_short(kind: str, check_exact: Callable[..., None]) -> None:
    """Lightning takes the epoch for unfinished when it is resumed once more, and the loader has more batches of it."""
    check_exact("fit", kind=kind, kills=[31, 61], every=30, ends=False, each_once=False, limit_train_batches=30)


def test_a_checkpoint_of_an_epochs_end_is_refused_under_max_steps(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "left_out")


@pytest.mark.parametrize("kind", ["map", "graph", "unsized"])
def test_fit_resumed_again_and_again_in_one_process(kind: str, trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path / "whole", "fit_again_and_again", kind=kind, epochs=2, stops=[])
    trainings.run(tmp_path / "parts", "fit_again_and_again", kind=kind, epochs=2, stops=[33, 55, 73])
    assert_same([lineage(tmp_path / "parts" / "journal.0")], [lineage(tmp_path / "whole" / "journal.0")])


def test_without_the_callback_an_epoch_is_lost_at_its_end(trainings: Trainings, tmp_path: Path) -> None:
    """Why there is one: Lightning loads no loader's state there, and the order begins again with the first epoch's."""
    trainings.run(tmp_path / "run", "fit", kind="map", epochs=3, bare=True, kill_at=100, killed=True)
    trainings.run(tmp_path / "run", "fit", kind="map", epochs=3, bare=True)
    order = [step["ids"] for step in lineage(tmp_path / "run" / "journal.0")]
    assert order[50:100] != order[:50]
    assert order[100:] == order[:50]


def test_misuse_is_refused(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "misuse")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("lightning")
