"""``Ranks(balance=...)`` on ranks that are processes and talk over gloo: what they do is in ``balance_script``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.services.balance_script import LENGTH, SAVED, WHOLE, lengths
from tests.warm import Warm

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]
WHOLE_STEPS = LENGTH // WHOLE


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Callable[..., dict[str, list[Any]]]:
    """What jobs return, in the order of ranks. All have one folder."""
    folder = tmp_path_factory.mktemp("ranks")

    def run(ranks: int, *jobs: str) -> dict[str, list[Any]]:
        commands = [
            ["-m", "tests.services.balance_script", str(folder), str(rank), str(ranks), *jobs] for rank in range(ranks)
        ]
        ended = warm.run_together(commands, cwd=ROOT)
        said = "\n".join((one.stdout + one.stderr)[-3000:] for one in ended)
        assert not any(one.returncode for one in ended), said
        return {
            job: [json.loads((folder / f"{job}.{ranks}.{rank}.json").read_text()) for rank in range(ranks)]
            for job in jobs
        }

    return run


@pytest.fixture(scope="module")
def four(play: Callable[..., dict[str, list[Any]]]) -> dict[str, list[Any]]:
    return play(4, "whole", "killed", "shadow", "refused")


def _sets(of_ranks: list[list[Any]]) -> list[list[int]]:
    """The samples of each step."""
    return [sorted({index for batch in step for index, _ in batch}) for step in zip(*of_ranks, strict=True)]


def _slowest(of_ranks: list[list[Any]]) -> int:
    costs = lengths()
    steps = list(zip(*of_ranks, strict=True))[:WHOLE_STEPS]
    return sum(max(int(sum(costs[index] for index, _ in batch)) for batch in step) for step in steps)


def test_each_sample_comes_once_and_ranks_are_equally_busy(four: dict[str, list[Any]]) -> None:
    for epoch in (0, 1):
        of_ranks = [result[epoch] for result in four["whole"]]
        indices = [index for batches in of_ranks for batch in batches[:WHOLE_STEPS] for index, _ in batch]
        assert len(indices) == len(set(indices)) == WHOLE * WHOLE_STEPS
        assert {index for batches in of_ranks for batch in batches for index, _ in batch} == set(range(LENGTH))
        assert _slowest(of_ranks) < 0.8 * _slowest([result[0] for result in four["shadow"]])
    assert four["whole"][0][0] != four["whole"][0][1]


def test_ranks_that_have_no_batch_repeat_their_last_one(four: dict[str, list[Any]]) -> None:
    last = [result[0][-2:] for result in four["whole"]]
    assert [len(two[1]) for two in last] == [4, 2, 4, 4]
    for before, pad in last[2:]:
        assert [index for index, _ in pad] == [index for index, _ in before]


def test_figures_tell_what_was_planned(four: dict[str, list[Any]]) -> None:
    planned, shadowed = ([result[2] for result in four[job]] for job in ("whole", "shadow"))
    assert all(figures == planned[0] for figures in planned)
    assert planned[0]["steps"] == shadowed[0]["steps"] == WHOLE_STEPS
    for name in ("slowest", "slowest_without"):
        assert planned[0][name] == pytest.approx(shadowed[0][name])
    assert planned[0]["slowest"] < 1.1 < 1.3 < planned[0]["slowest_without"]
    costs = lengths()
    for job, epoch in (("whole", 0), ("shadow", 0)):
        of_ranks = [result[epoch] for result in four[job]]
        had = [int(sum(costs[index] for batch in steps[:WHOLE_STEPS] for index, _ in batch)) for steps in of_ranks]
        assert four[job][0][2]["costs"] == [{"name": "cost", "ranks": had}]


def test_a_shadow_changes_nothing(four: dict[str, list[Any]]) -> None:
    for shadowed, plain, _ in four["shadow"]:
        assert shadowed == plain


def test_L4_a_killed_worker_changes_nothing(four: dict[str, list[Any]]) -> None:
    for killed, whole in zip(four["killed"], four["whole"], strict=True):
        assert killed == whole[:2]


def test_L3_other_ranks_have_the_same_samples_in_each_step(
    play: Callable[..., dict[str, list[Any]]], four: dict[str, list[Any]]
) -> None:
    epochs = [_sets([result[epoch] for result in four["whole"]]) for epoch in (0, 1)]
    for ranks in (2, 1):
        resumed = play(ranks, "resumed")["resumed"]
        for number in map(str, SAVED):
            rest, following = ([result[number][epoch] for result in resumed] for epoch in (0, 1))
            whole_steps = slice(None, -1) if rest[0] else slice(None)
            assert _sets(rest)[whole_steps] == epochs[0][int(number) : -1]
            assert _sets(following)[:-1] == epochs[1][:-1]
            if ranks == 1:  # which repeats nothing
                assert [len(batch) for batch in following[0]] == [WHOLE] * WHOLE_STEPS + [LENGTH % WHOLE]


def test_L7_ranks_that_would_plan_otherwise_are_told(four: dict[str, list[Any]]) -> None:
    for told in four["refused"]:
        assert len(told) == 3
        assert all("the ranks do not begin the same epoch: balance differs (rank 0: " in text for text in told)
