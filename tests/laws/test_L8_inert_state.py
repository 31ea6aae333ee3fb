"""L8, inert state: a checkpoint is data. Reading it runs nothing that is in it."""

from __future__ import annotations

import io
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.laws.test_L2_exact_resume import state_after
from torchpipe.errors import OpaqueStateWarning, StateError, UnsafeStateError
from torchpipe.iter import IterableWrapper
from torchpipe.loader.state import STATE_KEYS
from torchpipe.state import inspect


@pytest.mark.nightly
@given(graph_specs(), st.integers(1, 3), st.data())
def test_L8_torch_reads_it_with_weights_only(spec: GraphSpec, shards: int, data: st.DataObject) -> None:
    first, _ = oracle(spec, shards)
    count = data.draw(st.integers(0, len(first)))
    state = state_after(spec, make_service(None, shards, every=1), count)
    assert tuple(state) == STATE_KEYS
    buffer = io.BytesIO()
    torch.save({"loader": state, "step": 3}, buffer)
    buffer.seek(0)
    read = torch.load(buffer, weights_only=True)["loader"]
    assert read == state
    with make_loader(spec, make_service(None, None)) as loader:
        loader.load_state_dict(read)
        assert text_of(loader) == first[count:]
    assert f"epoch {state['epoch']}, " in inspect(state)


class Sample:
    """Not plain data: only pickle can rebuild it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Sample({self.number})"


def sample(number: int) -> Sample:
    return Sample(number)


def same(item: Any) -> Any:
    return item


@pytest.mark.parametrize("workers", [None, 2])
def test_L8_other_objects_load_only_when_allowed(workers: int | None) -> None:
    graph = IterableWrapper(range(30)).sharding_filter().map(sample).shuffle(buffer_size=6)
    first = oracle(graph, 2)[0]
    with make_loader(graph, make_service(workers, 2, every=1)) as loader:
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        with pytest.warns(OpaqueStateWarning, match=r"^Shuffler holds items of type tests\.laws.*\.Sample") as warned:
            state = loader.state_dict()
        assert [item.filename for item in warned] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.state_dict()  # said once
    assert "allow_pickle=True alone: tests.laws.test_L8_inert_state.Sample in" in inspect(state)
    with make_loader(graph, make_service(workers, 2, every=1)) as loader:
        with pytest.raises(UnsafeStateError, match=r"Sample.*allow_pickle=True"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow_pickle=True)
        assert text_of(loader) == first[9:]


class Bomb:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mknod, (str(self.path),)


def test_L8_a_hostile_state_runs_nothing(tmp_path: Path) -> None:
    source = IterableWrapper([Bomb(tmp_path / "exploded") for _ in range(4)], deepcopy=False)
    graph = source.sharding_filter().map(same).shuffle(buffer_size=4)  # what has gone through map is no position
    with make_loader(graph, make_service(None, 1, every=1)) as loader:
        next(iter(loader))
        with pytest.warns(OpaqueStateWarning, match="Bomb"):
            state = loader.state_dict()
    with make_loader(graph, make_service(None, 1)) as loader:
        with pytest.raises(UnsafeStateError):
            loader.load_state_dict(state)
        with pytest.raises(StateError):
            loader.load_state_dict(state | {"payload": pickle.dumps(Bomb(tmp_path / "exploded"))})
    inspect(state)
    assert not (tmp_path / "exploded").exists()
