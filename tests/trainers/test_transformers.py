"""Hugging Face's Trainer: kills in mid-epoch and at the end of one, its own skipping of batches, accumulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.conftest import Trainings

RUNS = "tests.trainers.transformers_runs"


@pytest.mark.parametrize("kind", ["map", "plain", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "dealt", "graph", "stream"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, ranks=2, kills=[33, 50])


def test_another_number_of_ranks_is_refused(trainings: Trainings, tmp_path: Path) -> None:
    """The Trainer counts on as if nothing had changed: it would skip other batches than those that were trained on."""
    trainings.run(tmp_path, "train", kind="dealt", epochs=2, ranks=2, kill_at=23, killed=True)
    trainings.run(
        tmp_path, "train", kind="dealt", epochs=2, ranks=1, refused="had 25 batches for each rank, and has 50 here"
    )


@pytest.mark.parametrize("kind", ["map", "graph"])
def test_checkpoints_at_the_end_of_epochs_alone(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 120], strategy="epoch")


@pytest.mark.parametrize("kind", ["map", "unsized"])
@pytest.mark.parametrize(
    "options",
    [{"gradient_accumulation_steps": 5, "save_steps": 3}, {"ignore_data_skip": True, "dataloader_num_workers": 2}],
    ids=["accumulate", "ignore_data_skip"],
)
def test_options(kind: str, options: dict[str, Any], check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[45, 100], **options)


def test_accumulation_with_a_remainder_loses_no_step(check_exact: Callable[..., None]) -> None:
    """50 batches by 4: the last step of an epoch is over 2; the count of steps is checked in the run."""
    check_exact("train", kind="map", kills=[45, 77], gradient_accumulation_steps=4, save_steps=5)


def test_misuse_is_refused(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "misuse")


def test_mixed_into_another_trainer(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "mixed_in")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("transformers")
