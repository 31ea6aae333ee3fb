"""``SavedLoader``'s keys: each rank saves its own shards, and any number of ranks goes on from what all have saved.

Ordinals do not talk, so that one process plays all ranks. ``tests/integrations/test_meshes.py`` has real ones.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reading_services import InProcessReadingService, OrdinalReadingService
from torchpipe import DataLoader, DataLoader2
from torchpipe.errors import StateError, StateMismatchError
from torchpipe.integrations.dcp import SavedLoader
from torchpipe.iter import IterableWrapper
from torchpipe.state import decode, merge

TOTAL, ITEMS = 6, 60


def _noisy(number: int, generator: np.random.Generator) -> tuple[int, float]:
    return number, float(generator.random())


def graph(items: int = ITEMS, buffer: int = 3) -> Any:
    return IterableWrapper(range(items)).shuffle().sharding_filter().random_map(_noisy).shuffle(buffer_size=buffer)


def rank(number: int, ranks: int, *, total: int = TOTAL, seed: int = 3, **more: Any) -> SavedLoader[Any]:
    service = OrdinalReadingService(seed, number, ranks, total_shards=total)
    return SavedLoader(DataLoader2(graph(**more), reading_service=service))


def run(ranks: int, **more: Any) -> list[SavedLoader[Any]]:
    return [rank(number, ranks, **more) for number in range(ranks)]


def checkpoint(loaders: list[SavedLoader[Any]]) -> dict[str, bytes]:
    """What a checkpoint has that all ranks write: names that several have are written once."""
    kept: dict[str, bytes] = {}
    for loader in loaders:
        kept |= loader.state_dict()
    return kept


def load(loader: SavedLoader[Any], kept: dict[str, bytes]) -> None:
    """As torch.distributed.checkpoint does: the names that the loader has now."""
    loader.load_state_dict({name: kept[name] for name in loader.state_dict()})


def shutdown(*loaders: SavedLoader[Any]) -> None:
    for loader in loaders:
        loader.shutdown()


def oracle(epochs: int = 1) -> list[list[Any]]:
    with DataLoader2(graph(), reading_service=InProcessReadingService(num_shards=TOTAL)) as loader:
        loader.seed(3)
        return [list(loader) for _ in range(epochs)]


def in_steps(streams: list[list[Any]]) -> list[Any]:
    """The ranks' n-th items in the order of ranks, of which the last may have one item less than the first."""
    assert sorted(map(len, streams), reverse=True) == [*map(len, streams)]
    return [item for step in zip_longest(*streams) for item in step if item is not None]


@pytest.mark.parametrize(("before", "after"), [(1, 6), (2, 3), (3, 2), (6, 1), (3, 3), (3, 4), (4, 5), (9, 2), (8, 4)])
@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_any_number_of_ranks_goes_on_from_the_shards_of_all(before: int, after: int, steps: int) -> None:
    whole, following = oracle(2)
    first = run(before)
    seen = [[item for _, item in zip(range(steps), loader)] for loader in first]
    kept = checkpoint(first)
    assert kept.keys() == {f"shard {shard} of {TOTAL}" for shard in range(TOTAL)}
    for number, loader in enumerate(first):
        parts = math.gcd(before, TOTAL)
        own = range(number % parts, TOTAL, parts)
        assert loader.state_dict().keys() == {f"shard {shard} of {TOTAL}" for shard in own}
    second = run(after)
    for loader in second:
        load(loader, kept)
    assert checkpoint(second).keys() == kept.keys()
    rest = [list(loader) for loader in second]
    taken = {repr(item) for items in seen for item in items}
    assert len(taken) == steps * before
    assert sum(map(len, rest)) == ITEMS - len(taken)
    assert {repr(item) for items in rest for item in items} == {repr(item) for item in whole} - taken
    if steps * before % TOTAL == 0:  # between two rounds
        assert in_steps(seen) + in_steps(rest) == whole
        assert in_steps([list(loader) for loader in second]) == following
    shutdown(*first, *second)


@pytest.mark.parametrize("asked", [True, False])
def test_behind_the_last_item_the_next_epoch_follows(asked: bool) -> None:
    """``asked``: the loop has ended, and the state is of the next one's start; else the rest of this one is empty."""
    _, following = oracle(2)
    first = run(2)
    for loader in first:
        items = iter(loader)
        assert len([next(items) for _ in range(ITEMS // 2)]) == ITEMS // 2
        assert not asked or list(items) == []
    kept = checkpoint(first)
    second = run(3)
    for loader in second:
        load(loader, kept)
    assert {loader.epoch for loader in second} == {int(asked)}
    assert asked or [list(loader) for loader in second] == [[]] * 3
    assert in_steps([list(loader) for loader in second]) == following
    shutdown(*first, *second)


def test_keys_are_inert_and_their_states_can_be_merged(tmp_path: Path) -> None:
    first = run(2)
    for loader in first:
        next(iter(loader))
    torch.save(checkpoint(first), tmp_path / "kept")
    kept = torch.load(tmp_path / "kept", weights_only=True)
    whole = merge([decode(kept[f"shard {shard} of {TOTAL}"])["state"] for shard in range(TOTAL)])
    assert whole == merge([loader.loader.state_dict() for loader in first])
    shutdown(*first)


def test_a_rank_saves_what_its_own_shards_hold() -> None:
    """None of it grows with the number of ranks."""
    sizes = {}
    for ranks in (1, 2, 6):
        loaders = run(ranks, items=6000, buffer=500)
        for loader in loaders:
            assert len([item for _, item in zip(range(12), loader)]) == 12
        sizes[ranks] = [sum(map(len, loader.state_dict().values())) for loader in loaders]
        shutdown(*loaders)
    assert max(sizes[6]) * 2 < min(sizes[2]) < max(sizes[2]) * 1.5 < sizes[1][0]


def _kept(*, steps: int = 2, ranks: int = 2, epochs: int = 0, **more: Any) -> dict[str, bytes]:
    loaders = run(ranks, **more)
    for loader in loaders:
        for _ in range(epochs):
            list(loader)
        for _ in zip(range(steps), loader):
            pass
    kept = checkpoint(loaders)
    shutdown(*loaders)
    return kept


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"steps": 5}, r"the step of shards differs \(2, 5\)"),
        ({"epochs": 1}, r"the epoch of shards differs \(0, 1\)"),
        ({"seed": 4}, r"the seed of shards differs \(3, 4\)"),
        ({"ranks": 3}, r"the number of ranks of shards differs \(2, 3\)"),
        ({"items": 66}, "the graph of shards differs"),
    ],
)
def test_keys_of_two_saves_are_refused(other: dict[str, Any], said: str) -> None:
    kept, others = _kept(), _kept(**other)
    mixed = kept | {name: value for name, value in others.items() if name.startswith(("shard 2 ", "shard 3 "))}
    loader = rank(0, 1)
    with pytest.raises(
        StateMismatchError, match=said + ".*Load a checkpoint that all ranks have saved at the same step"
    ):
        load(loader, mixed)
    load(loader, kept)
    shutdown(loader)


def test_what_is_missing_or_damaged_is_named() -> None:
    kept = _kept()
    loader = rank(1, 3)
    with pytest.raises(
        StateMismatchError, match=r"rank 1 of 3 needs the state of shard 1 of 6, shard 4 of 6, and.*none"
    ):
        loader.load_state_dict({})
    own = {name: value for name, value in kept.items() if name != "shard 4 of 6"}
    with pytest.raises(StateMismatchError, match="needs the state of shard 4 of 6, .*Save on all ranks"):
        loader.load_state_dict(own)
    for value in (None, 3, b"", kept["shard 4 of 6"][:-9]):
        with pytest.raises(StateError):
            loader.load_state_dict(kept | {"shard 4 of 6": value})  # type: ignore[dict-item]
    with pytest.raises(StateMismatchError, match="total_shards of the run that saved"):
        loader.load_state_dict(_kept(total=12))
    load(loader, kept)
    shutdown(loader)


def test_a_loader_of_another_kind_says_what_it_needs() -> None:
    plain = SavedLoader(DataLoader(range(8)))  # type: ignore[arg-type]
    with pytest.raises(
        StateMismatchError, match="this loader needs 'state' of the checkpoint, which has 'shard 0 of 6'"
    ):
        plain.load_state_dict(_kept())
    per_rank = SavedLoader(DataLoader2(graph(), reading_service=OrdinalReadingService(3, 1, 2)))
    assert [*per_rank.state_dict()] == ["rank 1 of 2"]
    with pytest.raises(StateMismatchError, match="needs 'rank 1 of 2' .*load on as many ranks"):
        per_rank.load_state_dict(plain.state_dict())
    items = [next(iter(per_rank))]
    again = SavedLoader(DataLoader2(graph(), reading_service=OrdinalReadingService(3, 1, 2)))
    load(again, per_rank.state_dict())
    rest = list(again)
    with DataLoader2(graph(), reading_service=OrdinalReadingService(3, 1, 2)) as whole:
        assert items + rest == list(whole)
    shutdown(plain, per_rank, again)


@pytest.mark.parametrize("value", [None, 5, "text", [1]])
def test_a_value_that_is_no_bytes_is_damage(value: Any) -> None:
    loader = SavedLoader(DataLoader(list(range(8)), 2))
    with pytest.raises(StateError, match="is damaged"):
        loader.load_state_dict({"state": value})
