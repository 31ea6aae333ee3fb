"""Accelerate: kills in mid-epoch and at the end of one, gradient accumulation, devices, skipping batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainers.conftest import Trainings

RUNS = "tests.trainers.accelerate_runs"


@pytest.mark.parametrize("kind", ["map", "plain", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "dealt", "graph", "unsized", "stream"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, ranks=2, kills=[33, 50])


@pytest.mark.parametrize("kind", ["map", "unsized"])
def test_gradient_accumulation_and_named_epochs(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[45, 100], accumulate=4, name_epochs=True)


@pytest.mark.parametrize("kind", ["map", "unsized"])
def test_a_state_from_an_epochs_last_batch(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[100], after=False)


def test_a_dataloader_through_accelerates_own_prepare(check_exact: Callable[..., None]) -> None:
    check_exact("train", kind="map2", kills=[73, 100], raw=True)


def test_it_behaves_as_accelerates_own(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "behaves_as_accelerates_own")


def test_the_last_batch_is_the_one_that_comes_last(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "lengths_are_estimates")


def test_misuse(trainings: Trainings, tmp_path: Path) -> None:
    trainings.run(tmp_path, "misuse")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("accelerate")
