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
    return start(2, "own_orders", "own_orders_of_rank_0")[0]


@pytest.mark.sample
@pytest.mark.parametrize("name", ["own_orders", "own_orders_of_rank_0"])
def test_a_rank_with_an_order_of_its_own_loads_its_own(apart: Results, name: str) -> None:
    for rank, (before, rest, loaded) in enumerate(apart[name]):
        assert loaded == rest
        assert sorted(number for batch in [*before, *rest] for number in batch) == list(range(rank, 16, 2))
