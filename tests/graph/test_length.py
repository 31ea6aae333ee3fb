"""The length of an epoch: the shards' lengths together, then what the main section makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchpipe import DataLoader2, InProcessReadingService
from torchpipe.graph.plan import plan, total_length
from torchpipe.iter import IterableWrapper


def source(length: int = 10) -> Any:
    return IterableWrapper(range(length))


STEPS = {
    "map": lambda graph, n: graph.map(str),
    "batch": lambda graph, n: graph.batch(n),
    "drop": lambda graph, n: graph.batch(n, drop_last=True),
    "take": lambda graph, n: graph.take(n),
    "cycle": lambda graph, n: graph.cycle(n),
    "repeat": lambda graph, n: graph.repeat(n),
    "concat": lambda graph, n: graph.concat(source(n)),
    "zip": lambda graph, n: graph.zip(source(n)),
    "shuffle": lambda graph, n: graph.shuffle(buffer_size=n),
    "enumerate": lambda graph, n: graph.enumerate(),
    "prefetch": lambda graph, n: graph.prefetch(n),
    "device": lambda graph, n: graph.to_device("cpu"),
}
HERE = st.sampled_from([name for name in STEPS if name != "device"])
BEHIND = st.sampled_from([name for name in STEPS if name not in ("concat", "zip", "cycle", "repeat")])


@given(
    st.integers(0, 20),
    st.integers(1, 4),
    st.lists(st.tuples(HERE, st.integers(1, 4)), max_size=2),
    st.lists(st.tuples(HERE, st.integers(1, 4)), max_size=2),
    st.lists(st.tuples(BEHIND, st.integers(1, 4)), max_size=2),
    st.booleans(),
)
def test_it_is_the_number_of_items(
    length: int, shards: int, before: Any, after: Any, behind: Any, dispatched: bool
) -> None:
    graph = source(length)
    for name, number in before:
        graph = STEPS[name](graph, number)
    graph = graph.sharding_round_robin_dispatch() if dispatched else graph.sharding_filter()
    for name, number in after:
        # What is dispatched comes once; reading it in several rounds is refused
        graph = STEPS["repeat" if dispatched and name == "cycle" else name](graph, number)
    if behind:
        graph = graph.to_device("cpu")
    for name, number in behind:
        graph = STEPS[name](graph, number)
    with DataLoader2(graph, reading_service=InProcessReadingService(num_shards=shards)) as loader:
        assert total_length(plan(graph), shards) == sum(1 for _ in loader)


def test_the_graph_is_not_changed_by_asking() -> None:
    graph = source().sharding_filter().batch(2)
    assert [total_length(plan(graph), shards) for shards in (1, 4, 2, 1)] == [5, 6, 6, 5]
    assert len(graph) == 5


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (source().sharding_filter().filter(bool), "Filter"),
        (source().sharding_filter().flatmap(str).batch(2), "FlatMapper"),
        (IterableWrapper(iter(range(3))).sharding_filter(), "iterator"),
        (source().sharding_filter().filter(bool).to_device("cpu").batch(2), "Filter"),
    ],
)
def test_what_is_not_known_is_a_type_error(graph: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"the length of an epoch is not known .*{name}.* Count the items while"):
        total_length(plan(graph), 2)


def test_a_length_said_by_the_user_counts() -> None:
    graph = source().sharding_filter().open_files(length=30).to_device("cpu")
    assert total_length(plan(graph), 1) == 30
