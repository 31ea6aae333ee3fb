"""Trainers' checkpoints of several ranks, with real processes that talk through gloo: see ``rank_script``."""

from __future__ import annotations

import pytest
import torch.distributed

from tests.services.test_distributed import Results, starting
from tests.warm import Warm

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch is built without distributed")


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Results:
    start = starting("tests.integrations.rank_script", tmp_path_factory, tmp_path_factory.mktemp("shared"), warm)
    return start(2, "own_orders", "own_orders_of_rank_0", "open_claims")[0]


@pytest.mark.sample
@pytest.mark.parametrize("name", ["own_orders", "own_orders_of_rank_0"])
def test_a_rank_with_an_order_of_its_own_loads_its_own(apart: Results, name: str) -> None:
    for rank, (before, rest, loaded) in enumerate(apart[name]):
        assert loaded == rest
        assert sorted(number for batch in [*before, *rest] for number in batch) == list(range(rank, 16, 2))


@pytest.mark.sample
def test_a_rank_is_given_its_own_open_claims_again(apart: Results) -> None:
    """By torch.distributed.checkpoint, and by a state that rank 0 has for all."""
    for rank, (ways, _) in enumerate(apart["open_claims"]):
        assert len(ways) == 5
        for name, way, whole, again in ways:
            still_open = [number for number in range(4 + rank) if number % 3 == rank]
            assert again == [[number, whole[number]] for number in (*still_open, *range(4 + rank, 8))], (name, way)


@pytest.mark.sample
def test_a_loader_whose_ranks_wait_for_each_other_has_no_claims(apart: Results) -> None:
    for _, told in apart["open_claims"]:
        assert [text.partition(": ")[0] for text in told] == [
            "each rank takes claims at its own pace, and the ranks of this loader begin epochs together"
        ] * 3
