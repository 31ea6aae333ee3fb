"""L8 for the one state of all ranks: forging it, or what is merged into it, is a StateError, and runs nothing."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.laws.executors import make_loader
from tests.laws.test_L8_forged_states import Bomb, dispatched, encoded_pickle, forged_numbers, opaque
from tests.services.ranks import FixedRank, Table, TogetherRank
from tests.state.forging import opened_deep, part, places, replaced, sealed_deep
from torchpipe import DataLoader2
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.iter import IterableWrapper
from torchpipe.state import decode, inspect, merge

HOSTILE = [None, -1, 1.5, 2**40, 2**61, 2**62, 2**63, "x", b"TPS", [], {}, [None], [-1], [[1]], True]


def staged() -> Any:
    return IterableWrapper(range(40)).shuffle(buffer_size=5).sharding_filter().map(_triple).to_device("cpu")


def _triple(number: int) -> tuple[int, int, int]:
    return (number,) * 3


def own_states(graph: Any, world: int = 2, count: int = 5) -> list[dict[str, Any]]:
    states = []
    for rank in range(world):
        with make_loader(graph, FixedRank(rank, world, 4)) as loader:
            iterator = iter(loader)
            for _ in range(count):
                next(iterator)
            states.append(loader.state_dict())
    return states


def forgeries(state: dict[str, Any], values: list[Any], *, within_snapshots: int = 0) -> Any:
    """The state with each of ``values`` in each place of its position, and in every so manyth within snapshots."""
    content = opened_deep(state["payload"])
    inner = 0
    for path in places(content):
        if path[:1] == ("position",) and not isinstance(part(content, path), msgpack.ExtType):
            if "value" in path:  # where others forge as well: those of a single process
                inner += 1
                if not within_snapshots or inner % within_snapshots:
                    continue
            for value in values:
                yield state | {"payload": sealed_deep(replaced(content, path, lambda _, value=value: value))}


def outcome(graph: Any, state: Any, rank: int, world: int) -> bool:
    """Was it refused? Raises: whatever is no StateError."""
    try:
        with DataLoader2(graph, reading_service=FixedRank(rank, world, 4)) as loader:
            loader.load_state_dict(state)
            list(loader)
    except StateError:
        return True
    return False


@pytest.mark.parametrize("graph", [dispatched, staged])
def test_L8_a_pickle_in_the_one_state_is_refused_on_every_rank(graph: Any, tmp_path: Path) -> None:
    fuse = tmp_path / "exploded"
    state = merge(own_states(graph()))
    tried = 0
    for forged in forgeries(state, [opaque(fuse)], within_snapshots=7):
        with DataLoader2(graph(), reading_service=FixedRank(1, 2, 4)) as loader, pytest.raises(StateError):
            loader.load_state_dict(forged)
        tried += 1
    assert tried > 40
    for forged in forgeries(state, [encoded_pickle(fuse), pickle.dumps(Bomb(fuse))], within_snapshots=11):
        outcome(graph(), forged, 1, 2)
    assert not fuse.exists()


def test_L8_hostile_values_in_the_one_state_are_refused() -> None:
    state = merge(own_states(dispatched()))
    results = [outcome(dispatched(), forged, 1, 4) for forged in forgeries(state, HOSTILE)]
    assert len(results) > 200
    assert all(results)


@pytest.mark.parametrize("graph", [dispatched, staged])
def test_L8_merging_forged_states_runs_nothing(graph: Any, tmp_path: Path) -> None:
    """And gives a StateError, or a state that loads or is refused as any other."""
    fuse = tmp_path / "exploded"
    first, second = own_states(graph())
    refused = 0
    for forged in forgeries(second, [*HOSTILE, opaque(fuse), encoded_pickle(fuse)]):
        try:
            state = merge([first, forged])
        except StateError:
            refused += 1
            continue
        inspect(state)
        with DataLoader2(graph(), reading_service=FixedRank(1, 2, 4)) as loader:
            try:
                loader.load_state_dict(state)
            except StateError:
                refused += 1
    assert refused > 200
    assert not fuse.exists()


def test_L8_a_rank_that_repeats_its_last_item_says_so_soundly() -> None:
    """Of what ranks add to a state when they pad, every place is looked at."""
    graph = IterableWrapper(range(9)).sharding_filter()
    with make_loader(graph, TogetherRank(0, Table(1), "pad", 1, 3)) as loader:
        iterator = iter(loader)
        for _ in range(9):
            next(iterator)
        state = loader.state_dict()
    assert "agreement" in repr(decode(state["payload"]))
    refused = 0
    for forged in forgeries(state, HOSTILE[::3]):
        try:
            with DataLoader2(graph, reading_service=TogetherRank(0, Table(1), "pad", 1, 3)) as loader:
                loader.load_state_dict(forged)
                list(loader)
        except StateError:
            refused += 1
    assert refused > 20


def test_L8_the_one_state_asks_for_no_more_shards_than_it_has() -> None:
    state = merge(own_states(dispatched()))
    for count in (2, 8, 60000, 65536):
        with pytest.raises(StateError):
            make_loader(dispatched(), FixedRank(1, 2)).load_state_dict(forged_numbers(state, num_shards=count))
    with pytest.raises(StateError, match="num_shards is 65537, and can be 1 to 65536"):
        make_loader(dispatched(), FixedRank(1, 2)).load_state_dict(forged_numbers(state, num_shards=65537))
    own = own_states(dispatched())[0]
    with pytest.raises(StateError, match="it is of rank 7 of 2"):
        merge([forged_numbers(own, rank=7)])
    with pytest.raises(StateMismatchError, match="rank 1, 2, 3, 4, .* of 4611686018427387904 is missing"):
        merge([forged_numbers(own, world_size=1 << 62)])
