"""What a trainer's loader gives when it is iterated again and again. torchtitan's base class is all that is a fake."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from torchpipe import DataLoader


class _Base:
    @dataclass(kw_only=True, slots=True)
    class Config:
        pass


@pytest.fixture
def titan(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("torchtitan", "torchtitan.components", "torchtitan.components.data"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    fake: Any = ModuleType("torchtitan.components.data.loader")
    fake.BaseDataLoader = _Base
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.delitem(sys.modules, "torchpipe.integrations.torchtitan", raising=False)
    made = importlib.import_module("torchpipe.integrations.torchtitan")
    monkeypatch.delitem(sys.modules, "torchpipe.integrations.torchtitan")

    class Numbers(made.ExactDataLoader):  # type: ignore[misc,name-defined]
        def make(self, **given: Any) -> Any:
            return DataLoader(range(6), batch_size=2, collate_fn=list)

    return lambda epochs: Numbers(Numbers.Config(epochs=epochs), dp_world_size=1, dp_rank=0)


EPOCH = [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("epochs", [1, 2])
def test_each_pass_of_a_validation_loader_is_whole(titan: Any, epochs: int) -> None:
    loader = titan(epochs)
    for stop in (None, 1, 3, None):
        assert list(islice(loader, stop)) == (EPOCH * epochs)[:stop]


@pytest.mark.parametrize("taken", range(7))
def test_what_is_left_of_a_run_is_left_once(titan: Any, taken: int) -> None:
    loader, other, ended = titan(2), titan(2), titan(2)
    batches = iter(loader)
    assert [next(batches) for _ in range(taken)] == (EPOCH * 2)[:taken]
    other.load_state_dict(loader.state_dict())
    assert list(other) == list(batches) == (EPOCH * 2)[taken:]
    ended.load_state_dict(loader.state_dict())
    assert list(ended) == []
    assert list(other) == list(ended) == EPOCH * 2
