"""L1 and L3 with ranks that do not divide the shards: they take turns at the items of the shards that they share.

Ranks are threads here; ``test_elastic`` and ``test_meshes`` have processes. The oracle is in-process execution.
"""

from __future__ import annotations

import math
import os
import signal
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import MultiProcessingReadingService, OrdinalReadingService, Restart, SequentialReadingService
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import text_of
from tests.laws.test_L2_exact_resume import rest_of
from tests.services.ranks import FixedRank, Table, TogetherRank, on_all_ranks
from tests.services.test_total_shards import (
    SPECS,
    UNEVEN,
    Run,
    even,
    in_rounds,
    in_steps,
    on_ranks,
    shards_of,
)
from tests.tries import tries
from torchpipe.errors import RankError, SharedShardsWarning, StateMismatchError
from torchpipe.iter import IterableWrapper
from torchpipe.state import merge

pytestmark = pytest.mark.filterwarnings("ignore::torchpipe.errors.SharedShardsWarning")
WORLDS = st.sampled_from([(4, (3, 6, 8)), (6, (4, 9, 5)), (1, (3,))])


class Counting:
    """Counts the items that it is called with, changes them, and saves its count."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, pair: list[int]) -> list[int]:
        self.count += 1
        pair.append(self.count)
        return pair

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def _pair(number: int) -> list[int]:
    return [number]


def _breaks(number: int) -> int:
    if number == 21:
        raise ValueError("a bad item")
    return number


@given(SPECS, WORLDS, st.sampled_from([1, 3]))
@settings(max_examples=tries(20))
def test_L1_ranks_that_take_turns_have_the_stream(spec: Any, worlds: tuple[int, tuple[int, ...]], every: int) -> None:
    total, others = worlds
    streams = shards_of(spec, total)
    whole = even(streams)
    for world in others:
        if len(whole) >= world:
            assert in_steps(on_ranks(spec, total, world, every=every)) == whole[: len(whole) // world * world]
        elif any(streams):
            with pytest.raises(RankError, match="has no item at all"):
                on_ranks(spec, total, world, every=every)


@given(SPECS, WORLDS, st.data())
@settings(max_examples=tries(25))
def test_L3_the_one_state_loads_under_any_number_of_ranks(
    spec: Any, worlds: tuple[int, tuple[int, ...]], data: st.DataObject
) -> None:
    total, others = worlds
    whole = even(shards_of(spec, total))
    world = data.draw(st.sampled_from([*others, total]))
    if len(whole) < world:
        return
    steps = data.draw(st.integers(1, len(whole) // world))
    saved = on_ranks(spec, total, world, stops=[steps] * world)
    state, at = saved[0][1][1], steps * world
    assert in_steps(saved) == whole[:at]
    assert all(states[1] == state for _, states in saved)
    assert state["delivered"] == at
    assert merge([states[0] for _, states in reversed(saved)]) == state
    assert merge([states[0] for _, states in saved[: math.gcd(world, total)]]) == state
    for other in (*others, total, 1):
        parts = math.gcd(other, total)
        left = [[item for place, item in enumerate(whole) if place >= at and place % parts == v] for v in range(parts)]
        expected = [left[rank % parts][rank // parts :: other // parts] for rank in range(other)]
        most = min(map(len, expected))
        if most:
            assert [items for items, _ in on_ranks(spec, total, other, state=state)] == [
                items[:most] for items in expected
            ]
    assert rest_of(spec, make_service(None, None), state) == oracle(spec, total)[0][at:]


def test_L2_each_rank_resumes_its_own_state_and_those_of_its_part() -> None:
    """Rank 5 of 6 has the shards of rank 1 of 2, whose state it can load too."""
    whole = even(shards_of(UNEVEN, 4))
    saved = on_ranks(UNEVEN, 4, 6, stops=[2] * 6)
    own = [states[0] for _, states in saved]
    assert [(state["rank"], state["world_size"], state["num_shards"]) for state in own] == [(0, 2, 2), (1, 2, 2)] * 3
    for places in (range(6), [0, 1] * 3):

        def again(rank: int, table: Table, places: Any = places) -> list[str]:
            with make_loader(UNEVEN, TogetherRank(rank, table, "drop", 1, 4)) as loader:
                loader.load_state_dict(own[places[rank]])
                return text_of(loader)

        results = on_all_ranks(6, again)
        rest = [item for step in zip(*results, strict=True) for item in step]
        assert rest == whole[12 : 12 + len(rest)]
        assert len(rest) == (len(whole) - 12) // 6 * 6


@pytest.mark.parametrize("world", [3, 6])
def test_with_pads_no_item_is_lost(world: int) -> None:
    streams = shards_of(UNEVEN, 4)
    everything = in_rounds(streams)
    results = on_ranks(UNEVEN, 4, world, "pad")
    assert len({len(items) for items, _ in results}) == 1
    assert {item for items, _ in results for item in items} == set(everything)
    most = len(results[0][0])
    for steps in (most, most - 1, most // 2):
        saved = on_ranks(UNEVEN, 4, world, "pad", stops=[steps] * world)
        done = {item for items, _ in saved for item in items}
        assert merge([states[0] for _, states in saved])["payload"] == saved[0][1][1]["payload"]
        for other in (1, 2, 3, 6):
            rest = on_ranks(UNEVEN, 4, other, "pad", state=saved[0][1][1])
            left = set(everything) - done
            assert {item for items, _ in rest for item in items} - done == left


def test_functions_that_count_and_change_what_they_get_give_the_stream_of_one_process() -> None:
    def graph() -> Any:
        return IterableWrapper(range(48)).shuffle().sharding_filter().map(_pair).map(Counting()).batch(2)

    whole = [[], []]  # type: list[list[str]]
    with make_loader(graph(), FixedRank(0, 1, 4, "drop")) as loader:
        for epoch in whole:
            epoch += text_of(loader)

    def play(rank: int, table: Table) -> tuple[list[list[str]], dict[str, Any]]:
        with make_loader(graph(), TogetherRank(rank, table, "drop", 1, 4)) as loader:
            first = text_of(loader)
            half = [repr(item) for _, item in zip(range(2), loader)]
            return [first, half], loader.state_dict("all")

    results = on_all_ranks(6, play)
    assert [item for step in zip(*(items[0] for items, _ in results)) for item in step] == whole[0]
    assert [item for step in zip(*(items[1] for items, _ in results)) for item in step] == whole[1][:12]
    state = results[0][1]
    assert in_steps(on_ranks(graph(), 4, 3, state=state)) == whole[1][12:]
    assert rest_of(graph(), make_service(None, None), state) == whole[1][12:]


def test_an_item_that_fails_leaves_the_state_before_it_on_each_rank() -> None:
    """Item 21 is the sixth of shard 1. All ranks that make it fail, and none counts an item that nobody was given."""
    graph = IterableWrapper(range(48)).sharding_filter().map(_breaks)

    def play(rank: int, table: Table) -> tuple[list[int], str, dict[str, Any]]:
        got: list[int] = []
        with make_loader(graph, TogetherRank(rank, table, "drop", 1, 4)) as loader:
            try:
                got += iter(loader)
            except (ValueError, RankError) as error:
                return got, str(error), loader.state_dict("all")
        return got, "", {}

    results = on_all_ranks(6, play)
    assert [item for step in zip(*(items for items, _, _ in results)) for item in step] == list(range(18))
    assert all("a bad item" in text for _, text, _ in results)
    state = results[0][2]
    mended = IterableWrapper(range(48)).sharding_filter().map(abs)
    with pytest.raises(StateMismatchError, match="belongs to another graph"):
        rest_of(mended, FixedRank(0, 1, 4), state)
    with make_loader(graph, FixedRank(0, 1, 4)) as loader:
        loader.load_state_dict(state)
        rest = iter(loader)
        assert [next(rest) for _ in range(3)] == [18, 19, 20]


def test_workers_make_the_same_items_and_one_that_is_killed_is_replaced() -> None:
    whole = even(shards_of(UNEVEN, 4))
    states, taken = [], []
    for rank in range(6):
        workers = MultiProcessingReadingService(2, "fork", on_worker_death=Restart(max_restarts=2))
        with make_loader(UNEVEN, SequentialReadingService(FixedRank(rank, 6, 4, "drop"), workers)) as loader:
            iterator = iter(loader)
            items = [repr(next(iterator))]
            os.kill(loader.stats().processes[1].pid, signal.SIGKILL)

            items.append(repr(next(iterator)))
            taken.append(items)
            states.append(loader.state_dict())
            part = even(shards_of(UNEVEN, 4)[rank % 2 :: 2])
            assert items + text_of(iterator) == part[rank // 2 :: 3]
    assert [item for step in zip(*taken) for item in step] == whole[:12]
    assert rest_of(UNEVEN, FixedRank(0, 1, 4, "drop"), merge(states)) == whole[12:]


def test_the_length_is_each_ranks_share() -> None:
    graph = IterableWrapper(range(50)).sharding_filter().batch(3)
    for world in (3, 6, 8):
        for rank in range(world):
            with make_loader(graph, FixedRank(rank, world, 4)) as loader:
                assert len(loader) == len(text_of(loader))
        with make_loader(graph, FixedRank(0, world, 4, "drop")) as loader:
            assert len(loader) == len(on_ranks(graph, 4, world)[0][0]) == 16 // world


def test_what_it_costs_is_said_once_with_a_number_that_costs_nothing() -> None:
    graph = IterableWrapper(range(50)).sharding_filter()
    said = "6 ranks do not divide total_shards=4: each shard runs on 3 ranks.*a rank makes 3 times.*total_shards=12"
    with pytest.warns(SharedShardsWarning, match=said):
        make_loader(graph, FixedRank(0, 6, 4)).shutdown()
    for rank, world in ((1, 6), (0, 2), (0, 4)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_loader(graph, FixedRank(rank, world, 4)).shutdown()


def test_ordinals_that_do_not_talk_take_turns_too() -> None:
    streams = shards_of(UNEVEN, 4)
    runs: list[Run] = []
    for rank in range(6):
        with make_loader(UNEVEN, OrdinalReadingService(5, rank, 6, total_shards=4)) as loader:
            iterator = iter(loader)
            items = [repr(next(iterator)) for _ in range(2)]
            runs.append((items, [loader.state_dict()]))
            assert items + text_of(iterator) == in_rounds(streams[rank % 2 :: 2])[rank // 2 :: 3]
    state = merge([states[0] for _, states in runs])
    assert in_steps(runs) == in_rounds(streams)[:12]
    with make_loader(UNEVEN, OrdinalReadingService(5, 0, 1, total_shards=4)) as loader:
        loader.load_state_dict(state)
        assert text_of(loader) == in_rounds(streams)[12:]


def test_a_rank_that_repeats_its_last_item_has_a_state_that_one_process_goes_on_from() -> None:
    """Of 10 items, rank 0 of 3 has one more than the others, who repeat theirs meanwhile."""
    graph = IterableWrapper(range(10)).sharding_filter()
    results = on_ranks(graph, 1, 3, "pad", stops=[4] * 3)
    assert [items for items, _ in results] == [["0", "3", "6", "9"], ["1", "4", "7", "7"], ["2", "5", "8", "8"]]
    for total in (1, None):
        for _, states in results:
            with make_loader(graph, FixedRank(0, 1, total)) as loader:
                loader.load_state_dict(states[0])
                assert text_of(loader) == []
                assert loader.epoch == 1
