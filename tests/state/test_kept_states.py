"""L3 over time: a state that was saved by an earlier torchpipe, torch, numpy or Python goes on exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.state.kept import FILE, LOADERS, digest


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    return torch.load(FILE, weights_only=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize("workers", [None, 2], ids=["in process", "workers"])
@pytest.mark.parametrize("name", LOADERS)
def test_L3_a_state_of_long_ago_goes_on_exactly(name: str, workers: int | None, kept: dict[str, Any]) -> None:
    """Should this fail: a change has made every checkpoint useless that anybody has. Is that meant?"""
    with LOADERS[name](workers) as loader:
        loader.load_state_dict(kept[name]["state"])
        assert digest(list(loader)) == kept[name]["rest"]
        assert digest(list(loader)) == kept[name]["next epoch"]
