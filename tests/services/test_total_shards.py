"""L1 and L3 across numbers of ranks: the stream is that of all shards, the one state loads under any number of ranks.

Ranks are threads here, which take turns; ``test_distributed`` has processes. The oracle is in-process execution.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.laws.test_L2_exact_resume import rest_of
from tests.services.ranks import FixedRank, Table, TogetherRank, on_all_ranks
from torchpipe.errors import StateMismatchError
from torchpipe.state import merge

TOTALS = st.sampled_from([(4, (1, 2, 4)), (6, (1, 2, 3, 6))])
UNEVEN: GraphSpec = (50, (("shuffle", 2),), (("filter", 1), ("shuffle", 2), ("item_random", 1), ("batch", 2)), False)
DEALT: GraphSpec = (*UNEVEN[:3], True)

Run = tuple[list[str], list[dict[str, Any]]]


def shards_of(spec: GraphSpec, total: int) -> list[list[str]]:
    """What each shard gives."""
    return [run(spec, FixedRank(shard, total, total)) for shard in range(total)]


def run(spec: Any, service: Any) -> list[str]:
    with make_loader(spec, service) as loader:
        return text_of(loader)


def in_rounds(streams: list[list[str]]) -> list[str]:
    """The order of a stream: by rounds, and in a round by shards."""
    nothing = object()
    return [item for items in zip_longest(*streams, fillvalue=nothing) for item in items if item is not nothing]  # type: ignore[misc]


def even(streams: list[list[str]]) -> list[str]:
    """The same, as far as all shards have an item."""
    return [item for items in zip(*streams) for item in items]


def on_ranks(
    spec: Any, total: int, world: int, uneven: str = "drop", *, every: int = 1, state: Any = None, stops: Any = ()
) -> list[Run]:
    """For each rank, what it delivers from ``state`` on, at most its number of ``stops``, and its states: own, all."""

    def play(rank: int, table: Table) -> Run:
        with make_loader(spec, TogetherRank(rank, table, uneven, every, total)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            got = []
            for item in loader:
                got.append(repr(item))
                if len(got) in stops[rank : rank + 1]:
                    break
            return got, [loader.state_dict(), loader.state_dict("all")]

    results = on_all_ranks(world, play)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def in_steps(results: list[Run]) -> list[str]:
    """The ranks' n-th items in the order of ranks."""
    assert len({len(items) for items, _ in results}) == 1, "the ranks have not taken as many steps"
    return [item for step in zip(*(items for items, _ in results)) for item in step]


@given(graph_specs(), TOTALS, st.sampled_from([1, 3]))
@settings(max_examples=25)
def test_L1_the_ranks_items_in_their_order_are_the_stream(
    spec: GraphSpec, totals: tuple[int, tuple[int, ...]], every: int
) -> None:
    total, worlds = totals
    streams = shards_of(spec, total)
    assert in_rounds(streams) == oracle(spec, total, epochs=1)[0]
    for world in worlds:
        assert in_steps(on_ranks(spec, total, world, every=every)) == even(streams)


@given(graph_specs(), TOTALS, st.data())
@settings(max_examples=25)
def test_L3_the_one_state_loads_under_any_number_of_ranks(
    spec: GraphSpec, totals: tuple[int, tuple[int, ...]], data: st.DataObject
) -> None:
    total, worlds = totals
    whole = even(shards_of(spec, total))
    world = data.draw(st.sampled_from(worlds))
    if not whole:
        return
    steps = data.draw(st.integers(1, len(whole) // world))
    saved = on_ranks(spec, total, world, stops=[steps] * world)
    state = saved[0][1][1]
    at = steps * world
    assert in_steps(saved) == whole[:at]
    assert all(states[1] == state for _, states in saved)
    assert merge([states[0] for _, states in reversed(saved)]) == state
    for other in worlds:
        results = on_ranks(spec, total, other, state=state)
        expected = [
            [item for place, item in enumerate(whole) if place >= at and place % other == rank] for rank in range(other)
        ]
        most = min(map(len, expected))  # a step needs an item for each rank
        if most:
            assert [items for items, _ in results] == [items[:most] for items in expected]
    everything = oracle(spec, total)
    assert rest_of(spec, make_service(None, None), state) == (everything[0][at:] or everything[1])


@given(graph_specs(), TOTALS, st.data())
@settings(max_examples=25)
def test_L3_ranks_at_different_positions_merge_exactly(
    spec: GraphSpec, totals: tuple[int, tuple[int, ...]], data: st.DataObject
) -> None:
    """With pads none is lost, wherever they stood: each shard goes on where it was."""
    total, worlds = totals
    streams = shards_of(spec, total)
    world = data.draw(st.sampled_from(worlds))
    stops = [data.draw(st.integers(0, 12)) for _ in range(world)]
    states, done = [], []
    for rank in range(world):  # each on its own, without any talk
        with make_loader(spec, FixedRank(rank, world, total)) as loader:
            iterator = iter(loader)
            done += [repr(item) for _, item in zip(range(stops[rank]), iterator)]
            states.append(loader.state_dict())
    if len({state["epoch"] for state in states}) > 1:
        with pytest.raises(StateMismatchError, match="epoch differs"):
            merge(states)
        return
    state = merge(states)
    counts = {index: sum(item in done for item in stream) for index, stream in enumerate(streams)}
    rest = in_rounds([[""] * counts[index] + stream[counts[index] :] for index, stream in enumerate(streams)])
    rest = [item for item in rest if item]
    if len(set(in_rounds(streams))) < sum(map(len, streams)) or not done or not rest:
        return
    assert rest_of(spec, make_service(None, None), state) == rest
    for other in worlds:
        results = on_ranks(spec, total, other, "pad", state=state)
        assert len({len(items) for items, _ in results}) == 1
        assert {item for items, _ in results for item in items} >= set(rest)
        fresh = [item for items, _ in results for item in dict.fromkeys(items) if item in rest]
        assert sorted(fresh) == sorted(rest)
