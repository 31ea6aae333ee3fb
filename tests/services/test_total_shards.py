"""L1 and L3 across numbers of ranks: the stream is that of all shards, the one state loads under any number of ranks.

Ranks are threads here, which take turns; ``test_distributed`` has processes. The oracle is in-process execution.
"""

from __future__ import annotations

import warnings
from itertools import zip_longest
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import (
    MultiProcessingReadingService,
    OrdinalReadingService,
    SequentialReadingService,
)
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.laws.test_L2_exact_resume import rest_of
from tests.services.ranks import FixedRank, Table, TogetherRank, on_all_ranks
from tests.tries import tries
from torchpipe import DataLoader2
from torchpipe.errors import GraphError, RankError, StateError, StateMismatchError, UnevenWarning
from torchpipe.iter import SHARDING_PRIORITIES, IterableWrapper
from torchpipe.state import merge

TOTALS = st.sampled_from([(4, (1, 2, 4)), (6, (1, 2, 3, 6))])
UNEVEN: GraphSpec = (120, (("shuffle", 2),), (("filter", 1), ("shuffle", 2), ("item_random", 1), ("batch", 2)), False)
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


def _draws(spec: GraphSpec) -> bool:
    return any(name in ("global_random", "flatmap_lazy", "fork_lazy", "retry") for name, _ in (*spec[1], *spec[2]))


# Ranks are threads here, of which one alone could own the process's random states
SPECS = graph_specs().filter(lambda spec: not _draws(spec))


def in_steps(results: list[Run]) -> list[str]:
    """The ranks' n-th items in the order of ranks."""
    assert len({len(items) for items, _ in results}) == 1, "the ranks have not taken as many steps"
    return [item for step in zip(*(items for items, _ in results)) for item in step]


@given(SPECS, TOTALS, st.sampled_from([1, 3]))
@settings(max_examples=tries(25))
def test_L1_the_ranks_items_in_their_order_are_the_stream(
    spec: GraphSpec, totals: tuple[int, tuple[int, ...]], every: int
) -> None:
    total, worlds = totals
    streams = shards_of(spec, total)
    assert in_rounds(streams) == oracle(spec, total, epochs=1)[0]
    for world in worlds:
        if any(streams) and not all(streams):
            with pytest.raises(RankError, match="has no item at all"):
                on_ranks(spec, total, world, every=every)
        else:
            assert in_steps(on_ranks(spec, total, world, every=every)) == even(streams)


@given(SPECS, TOTALS, st.data())
@settings(max_examples=tries(25))
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
    assert rest_of(spec, make_service(None, None), state) == everything[0][at:]


@given(SPECS, TOTALS, st.data())
@settings(max_examples=tries(25))
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
    for other in worlds if all(streams) else (1,):  # a rank without any item has none to repeat
        results = on_ranks(spec, total, other, "pad", state=state)
        assert len({len(items) for items, _ in results}) == 1
        assert {item for items, _ in results for item in items} >= set(rest)
        fresh = [item for items, _ in results for item in dict.fromkeys(items) if item in rest]
        assert sorted(fresh) == sorted(rest)


def test_L2_a_rank_resumes_its_own_state_wherever_the_ranks_stood() -> None:
    """Also where the ranks' positions did not fill a step of theirs, so that one is an item ahead of another."""
    whole = even(shards_of(UNEVEN, 4))
    for at in (3, 5, 6, 7):
        state = on_ranks(UNEVEN, 4, 1, stops=[at])[0][1][1]
        reached = on_ranks(UNEVEN, 4, 4, state=state, stops=[1] * 4)
        rest = on_ranks(UNEVEN, 4, 4, state=state)
        assert len({len(items) for items, _ in rest}) == 1
        assert not {item for items, _ in rest for item in items} - set(whole)

        def again(rank: int, table: Table, reached: list[Run] = reached) -> list[str]:
            with make_loader(UNEVEN, TogetherRank(rank, table, "drop", 1, 4)) as loader:
                loader.load_state_dict(reached[rank][1][0])
                return text_of(loader)

        assert on_all_ranks(4, again) == [items[1:] for items, _ in rest]


@pytest.mark.parametrize("spec", [UNEVEN, DEALT], ids=["filter", "dispatcher"])
def test_L1_ranks_with_workers_have_the_same_stream(spec: GraphSpec) -> None:
    streams = shards_of(spec, 4)
    whole = even(streams)
    states = []
    for rank in range(2):
        own = even(streams[rank::2])  # a rank that asks no other ends with its own shards
        workers = MultiProcessingReadingService(2, "fork")
        with make_loader(spec, SequentialReadingService(FixedRank(rank, 2, 4, "drop"), workers)) as loader:
            iterator = iter(loader)
            assert [repr(next(iterator)) for _ in range(3)] == own[:3]
            states.append(loader.state_dict())
            assert text_of(iterator) == own[3:]
            assert text_of(loader) == run_epoch(spec, FixedRank(rank, 2, 4, "drop"), 1)
    state = merge(states)
    assert in_steps(on_ranks(spec, 4, 1, state=state)) == whole[6:]
    service = SequentialReadingService(FixedRank(0, 1, 4, "drop"), MultiProcessingReadingService(3, "fork"))
    assert rest_of(spec, service, state) == whole[6:]


@pytest.mark.parametrize("service", ["in process", "workers"])
def test_L7_what_the_last_round_leaves_out_is_told_once(service: str) -> None:
    def loader(graph: Any) -> Any:
        ranks = FixedRank(0, 1, 4, "drop")
        if service == "in process":
            return make_loader(graph, ranks)
        return make_loader(graph, SequentialReadingService(ranks, MultiProcessingReadingService(2, "fork")))

    files = IterableWrapper(range(4)).sharding_filter().flatmap(lambda file: range(10 if file else 3))
    with loader(files) as made:
        with pytest.warns(UnevenWarning, match="ended with shard 0, which had no more .* and left out") as told:
            assert [len(list(made)) for _ in range(2)] == [12, 12]
        assert len(told) == 1
        assert told[0].filename == __file__
        assert 0 < made.stats().left_over <= 21
        assert [event.kind for event in made.stats().events] == ["uneven"]
        stream = iter(made)
        for _ in range(5):
            next(stream)
        made.load_state_dict(made.state_dict())
        assert len(list(made)) == 7
        assert 0 < made.stats().left_over <= 21
    with loader(IterableWrapper(range(4)).flatmap(lambda file: range(10 if file else 3)).sharding_filter()) as made:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(list(made)) == 32
        assert made.stats().left_over == 1


def run_epoch(spec: Any, service: Any, epoch: int) -> list[str]:
    with make_loader(spec, service) as loader:
        loader.set_epoch(epoch)
        return text_of(loader)


def test_uneven_shards_can_be_refused() -> None:
    streams = shards_of(UNEVEN, 4)
    assert len({len(stream) for stream in streams}) > 1
    whole = even(streams)
    for world in (1, 2, 4):

        def play(rank: int, table: Table, world: int = world) -> tuple[list[str], str]:
            got = []
            with make_loader(UNEVEN, TogetherRank(rank, table, "raise", 1, 4)) as loader:
                try:
                    for item in loader:
                        got.append(repr(item))
                except RankError as error:
                    return got, str(error)
            return got, ""

        results = on_all_ranks(world, play)
        assert [item for step in zip(*(items for items, _ in results)) for item in step] == whole
        short = [str(shard) for shard, stream in enumerate(streams) if len(stream) == len(whole) // 4]
        assert any(f"shard {short[0]}" in text for _, text in results) or world == 4
        assert all(text for _, text in results)
    level = IterableWrapper(range(16)).sharding_filter()
    assert in_steps(on_ranks(level, 4, 2, "raise")) == [str(number) for number in range(16)]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_with_pads_no_item_is_lost(world: int) -> None:
    streams = shards_of(UNEVEN, 4)
    everything = in_rounds(streams)
    results = on_ranks(UNEVEN, 4, world, "pad")
    for rank, (items, _) in enumerate(results):
        own = in_rounds(streams[rank::world])
        assert items == own + own[-1:] * (len(items) - len(own))
    assert {item for items, _ in results for item in items} == set(everything)
    for steps in (len(results[0][0]) - 1, len(results[0][0]) // 2):
        saved = on_ranks(UNEVEN, 4, world, "pad", stops=[steps] * world)
        done = {item for items, _ in saved for item in items}
        for other in (1, 2, 4):
            rest = on_ranks(UNEVEN, 4, other, "pad", state=saved[0][1][1])
            assert len({len(items) for items, _ in rest}) == 1
            left = [item for item in everything if item not in done]
            if left:
                assert {item for items, _ in rest for item in items} - done == set(left)


def _tensors(batch: Any) -> torch.Tensor:
    return torch.tensor([item for pair in batch for item in (pair if isinstance(pair, tuple) else (pair,))])


def _doubled(batch: torch.Tensor) -> torch.Tensor:
    return 2 * batch


def _on_device() -> Any:
    graph: Any = IterableWrapper(range(60)).shuffle().sharding_filter().batch(2).map(_tensors)
    return graph.to_device("cpu", prefetch=3).map(_doubled)


def _two_branches() -> Any:
    left: Any = IterableWrapper(range(40)).sharding_filter().map(torch.tensor).to_device("cpu")
    right: Any = IterableWrapper(range(100, 150)).sharding_filter().map(torch.tensor).to_device("cpu")
    return left.zip(right)


@pytest.mark.parametrize("graph", [_on_device, _two_branches])
def test_L3_what_runs_after_the_shards_does_not_matter(graph: Any) -> None:
    """A device stage runs ahead, in a thread; what is after it makes each item of one; two branches keep pace."""

    def ahead(rank: int, world: int) -> Any:
        workers = MultiProcessingReadingService(1, "fork")  # which lets the stage have its thread
        return SequentialReadingService(FixedRank(rank, world, 4, "drop"), workers)

    whole = run(graph(), FixedRank(0, 1, 4, "drop"))
    states = []
    for rank in range(2):
        with make_loader(graph(), ahead(rank, 2)) as loader:
            iterator = iter(loader)
            assert [repr(next(iterator)) for _ in range(3)] == whole[rank::2][:3]
            states.append(loader.state_dict())
            assert text_of(iterator) == whole[rank::2][3:]
    state = merge(states)
    assert state["delivered"] == 6
    for world in (1, 2):
        for rank in range(world):
            assert rest_of(graph(), FixedRank(rank, world, 4, "drop"), state) == whole[6:][rank::world]
    assert rest_of(graph(), make_service(None, None), state)[: len(whole) - 6] == whole[6:]


def test_shards_of_ranks_without_a_total_merge_too() -> None:
    streams = oracle(UNEVEN, 4)[0]
    states, done = [], []
    for rank in range(2):
        service = SequentialReadingService(FixedRank(rank, 2), make_service(None, 2))
        with make_loader(UNEVEN, service) as loader:
            iterator = iter(loader)
            done += [repr(next(iterator)) for _ in range(2)]
            states.append(loader.state_dict())
    state = merge(states)
    assert (state["num_shards"], state["world_size"], state["delivered"]) == (4, 1, 4)
    assert sorted(done) == sorted(streams[:4])
    assert rest_of(UNEVEN, make_service(None, None), state) == streams[4:]
    with make_loader(UNEVEN, FixedRank(1, 2)) as loader:
        loader.load_state_dict(state)
        assert loader.num_shards == 2  # adopted
    with pytest.raises(StateMismatchError, match=r"num_shards=2 \(4 of all ranks, divided among 2\).*num_shards=3"):
        rest_of(UNEVEN, SequentialReadingService(FixedRank(1, 2), make_service(None, 3)), state)


def test_ordinals_that_do_not_talk_share_the_stream() -> None:
    streams = shards_of(UNEVEN, 4)
    states = []
    for rank in range(2):
        with make_loader(UNEVEN, OrdinalReadingService(5, rank, 2, total_shards=4)) as loader:
            iterator = iter(loader)
            items = [repr(next(iterator)) for _ in range(3)]
            states.append(loader.state_dict())
            assert items + text_of(iterator) == in_rounds(streams[rank::2])
            with pytest.raises(RuntimeError, match="OrdinalReadingService says nothing.*torchpipe.state.merge"):
                loader.state_dict("all")
    rest = run_from(UNEVEN, OrdinalReadingService(5, 0, 1, total_shards=4), merge(states))
    assert rest == in_rounds(streams)[6:]


def run_from(spec: Any, service: Any, state: dict[str, Any]) -> list[str]:
    with make_loader(spec, service) as loader:
        loader.load_state_dict(state)
        return text_of(loader)


# -- what does not fit ------------------------------------------------------------------------------------------


def _saved(
    world: int, total: int | None = 4, spec: Any = UNEVEN, seed: int = 5, count: int = 2
) -> list[dict[str, Any]]:
    states = []
    for rank in range(world):
        with make_loader(spec, FixedRank(rank, world, total), seed) as loader:
            iterator = iter(loader)
            for _ in range(count):
                next(iterator)
            states.append(loader.state_dict())
    return states


def test_states_that_do_not_belong_together_are_refused_by_name() -> None:
    states = _saved(4)
    for chosen, match in (
        ([], "no states"),
        (states[:2], "of rank 2, 3 of 4 is missing"),
        (
            [*states, _saved(4, count=3)[1]],
            "the shards of rank 1 of 4 have states after 2 and 3 items: .*at the same step",
        ),
        ([*states[:3], _saved(4, seed=6)[3]], "seed differs .*rank 2: 5, rank 3: 6"),
        ([*states[:3], _saved(2, 2)[1]], "world_size differs .*rank 2: 4, rank 1: 2"),
        ([*states[:3], _saved(4, 8)[3]], "num_shards differs .*rank 2: 1, rank 3: 2"),
        ([*states[:3], _saved(4, spec=DEALT)[3]], "fingerprint differs"),
    ):
        with pytest.raises(StateMismatchError, match=match):
            merge(chosen)
    with pytest.raises(StateError, match="a loader state is the dict from state_dict"):
        merge([*states[:3], b"bytes"])  # type: ignore[list-item]
    alone = _saved(1)[0]
    assert merge([alone]) == alone


def test_states_of_a_stream_that_depends_on_the_ranks_are_refused() -> None:
    graph: Any = IterableWrapper(range(24)).sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
    graph = graph.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
    with pytest.raises(StateMismatchError, match="divides among ranks apart from shards"):
        merge(_saved(2, None, graph))
    alone = _saved(1, None, graph)[0]
    with pytest.raises(StateMismatchError, match="apart from their shards: give the reading service total_shards"):
        rest_of(graph, FixedRank(0, 2), alone)
    assert merge(_saved(2, 4, graph))["num_shards"] == 4  # with a total, ranks are nothing that divides


def test_a_state_of_another_total_is_refused_with_both() -> None:
    state = merge(_saved(4))
    with pytest.raises(StateMismatchError, match="has 4 shards, which 3 ranks cannot host in equal parts.*1, 2, 4"):
        rest_of(UNEVEN, FixedRank(0, 3), state)
    with pytest.raises(StateMismatchError, match=r"num_shards=2 \(4 of all ranks, divided among 2\).*num_shards=4"):
        rest_of(UNEVEN, FixedRank(0, 2, 8), state)
    own = _saved(4)[1]
    with pytest.raises(StateMismatchError, match="rank 1 of 4, this loader is rank 0 of 1: .*torchpipe.state.merge"):
        rest_of(UNEVEN, make_service(None, None), own)


def test_what_a_total_rules_out_is_refused_when_the_loader_is_made() -> None:
    with pytest.raises(GraphError, match="no sharding point, so each of 4 shards"):
        make_loader(IterableWrapper(range(9)), FixedRank(0, 1, 4))
    graph: Any = IterableWrapper(range(9)).sharding_filter().to_device("cpu")
    with pytest.raises(GraphError, match="Batcher runs after the shards, once on each rank.*total_shards=4 rules out"):
        make_loader(graph.batch(2), FixedRank(0, 2, 4))
    with pytest.raises(GraphError, match="2 branches meet after the shards"):
        make_loader(_two_branches(), FixedRank(0, 2, 4, "pad"))


def test_a_node_that_holds_items_after_the_shards_cannot_be_dealt() -> None:
    graph: Any = IterableWrapper(range(40)).sharding_filter().to_device("cpu").shuffle(buffer_size=4)
    with pytest.raises(StateMismatchError, match=r"node that runs after the shards has a position of its own .*buffer"):
        merge(_saved(2, None, graph))


def test_the_length_is_that_of_the_rounds() -> None:
    graph = IterableWrapper(range(50)).sharding_filter().batch(3)
    for world in (1, 2, 4):
        with make_loader(graph, FixedRank(0, world, 4, "drop")) as loader:
            assert len(loader) == len(on_ranks(graph, 4, world)[0][0]) == 16 // world
        with make_loader(graph, FixedRank(0, world, 4)) as loader:
            assert len(loader) == len(text_of(loader))


def test_ordinals_states_before_the_first_epoch_are_one_state() -> None:
    """Each said the seed that its loader would have drawn, so states of several processes were of several runs."""

    def loader(rank: int, ranks: int) -> DataLoader2[int]:
        graph = IterableWrapper(range(12)).shuffle().sharding_filter()
        return DataLoader2(graph, reading_service=OrdinalReadingService(7, rank, ranks, total_shards=4))

    states = []
    for rank in range(2):
        torch.manual_seed(rank)  # another process
        states.append(loader(rank, 2).state_dict())
    assert [state["seed"] for state in states] == [7, 7]
    with loader(0, 1) as alone, loader(0, 1) as resumed:
        resumed.load_state_dict(merge(states))
        assert list(resumed) == list(alone)
