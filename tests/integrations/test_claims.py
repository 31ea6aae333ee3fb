"""Claims on several ranks: each has its own, whoever saves the state. What the ranks do is in ``claims_script``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.integrations.claims_script import RANKS
from tests.warm import Warm

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> list[Any]:
    folder = tmp_path_factory.mktemp("ranks")
    script = "tests.integrations.claims_script"
    ended = warm.run_together([["-m", script, str(folder), str(rank)] for rank in range(RANKS)], cwd=ROOT)
    assert all(one.returncode == 0 for one in ended), "\n".join((one.stdout + one.stderr)[-3000:] for one in ended)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.sample
def test_a_rank_is_given_its_own_open_claims_again(ranks: list[Any]) -> None:
    """By torch.distributed.checkpoint, and by a state that rank 0 has for all."""
    for rank, (ways, _) in enumerate(ranks):
        assert len(ways) == 5
        for name, way, whole, again in ways:
            still_open = [number for number in range(4 + rank) if number % 3 == rank]
            assert again == [[number, whole[number]] for number in (*still_open, *range(4 + rank, 8))], (name, way)


@pytest.mark.sample
def test_a_loader_whose_ranks_wait_for_each_other_has_no_claims(ranks: list[Any]) -> None:
    for _, told in ranks:
        assert [text.partition(": ")[0] for text in told] == [
            "each rank takes claims at its own pace, and the ranks of this loader begin epochs together"
        ] * 3
