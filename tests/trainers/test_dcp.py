"""torch.distributed.checkpoint: its templates, rank 0's values for all, saving while the training goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

RUNS = "tests.trainers.dcp_runs"


@pytest.mark.parametrize("kind", ["map", "plain", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "graph", "unsized"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, ranks=2, kills=[33, 50])


@pytest.mark.parametrize("kind", ["map", "unsized"])
@pytest.mark.parametrize("use", ["early", "async_save", "within"])
def test_other_ways_of_use(kind: str, use: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100], use=use)


def test_async_save_on_two_ranks(check_exact: Callable[..., None]) -> None:
    check_exact("train", kind="graph", ranks=2, kills=[33, 50], use="async_save")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("dcp")
