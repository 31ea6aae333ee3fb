"""torch.distributed.checkpoint: its templates, rank 0's values for all, saving while the training goes on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.conftest import Trainings

RUNS = "tests.trainers.dcp_runs"


@pytest.mark.parametrize("kind", ["map", "plain", "graph", "unsized"])
def test_killed_in_mid_epoch_and_at_its_end(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100])


@pytest.mark.parametrize("kind", ["map2", "dealt", "graph", "unsized", "stream"])
def test_two_ranks(kind: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, ranks=2, kills=[33, 50])


@pytest.mark.parametrize("kind", ["dealt", "shards"])
def test_another_number_of_ranks(kind: str, trainings: Trainings, tmp_path: Path) -> None:
    """Killed on 2 ranks, gone on with on 1 and then on 2: in the order of ranks, the batches of a run on 1."""
    trainings.run(tmp_path / "whole", "train", kind=kind, epochs=2)
    trainings.run(tmp_path / "cut", "train", kind=kind, epochs=2, every=10, ranks=2, kill_at=13, killed=True)
    trainings.run(tmp_path / "cut", "train", kind=kind, epochs=2, every=10, ranks=1, kill_at=33, killed=True)
    trainings.run(tmp_path / "cut", "train", kind=kind, epochs=2, every=10, ranks=2)
    first, second = ((tmp_path / "cut" / f"journal.{rank}").read_text() for rank in (0, 1))
    rank_0, rank_1 = parts(first), parts(second)
    assert [start for start, _ in rank_0] == [0, 10, 30]
    got = [*together(rank_0[0][1][:10], rank_1[0][1][:10]), *rank_0[1][1][:20], *together(rank_0[2][1], rank_1[1][1])]
    wanted = parts((tmp_path / "whole" / "journal.0").read_text())[0][1]
    assert [(step["ids"], step["digest"]) for step in got] == [(step["ids"], step["digest"]) for step in wanted]


def parts(journal: str) -> list[tuple[int, list[dict[str, Any]]]]:
    """For each process: after how many steps it began, and its own steps."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    for line in map(json.loads, journal.splitlines()):
        if "start" in line:
            found.append((line["start"], []))
        else:
            found[-1][1].append(line)
    return found


def together(*ranks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The steps of all ranks, in the order of ranks."""
    return itertools.chain.from_iterable(zip(*ranks, strict=True))


@pytest.mark.parametrize("kind", ["map", "unsized"])
@pytest.mark.parametrize("use", ["early", "async_save", "within"])
def test_other_ways_of_use(kind: str, use: str, check_exact: Callable[..., None]) -> None:
    check_exact("train", kind=kind, kills=[73, 100], use=use)


def test_async_save_on_two_ranks(check_exact: Callable[..., None]) -> None:
    check_exact("train", kind="graph", ranks=2, kills=[33, 50], use="async_save")


def test_the_example_and_the_documentation(check_shown: Callable[[str], None]) -> None:
    check_shown("dcp")
