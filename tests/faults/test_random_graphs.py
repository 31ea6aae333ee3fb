"""Random graphs x random cut x random number of workers x random kills, under every start method."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import Restart
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs
from tests.laws.kills import kills_in, run_with_kills

SHARDS = 3


def survive(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], most: int, context: str, data: st.DataObject
) -> None:
    worker_prefetch, main_prefetch, every = ahead
    expected = oracle(spec, SHARDS)
    # Kills may fall on one position by chance, which is not what this is about: a large budget
    service = make_service(
        workers,
        SHARDS,
        context=context,
        every=every,
        on_worker_death=Restart(max_deaths=1000),
        worker_prefetch_cnt=worker_prefetch,
        main_prefetch_cnt=main_prefetch,
    )
    kills = data.draw(kills_in(expected, most), "kills")
    with make_loader(spec, service) as loader:
        assert run_with_kills(loader, len(expected), kills) == expected


AHEAD = st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 7))


def examples(share: float) -> Callable[[object], object]:
    """That share of the profile's number of examples: starting a process costs seconds under spawn."""
    return settings(max_examples=max(1, round(settings().max_examples * share)))


@examples(1.0)
@given(graph_specs(), st.integers(1, SHARDS), AHEAD, st.data())
def test_any_graph_survives_any_kill(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], data: st.DataObject
) -> None:
    survive(spec, workers, ahead, 4, "fork", data)


@examples(0.1)
@given(graph_specs(), st.integers(1, SHARDS), AHEAD, st.data())
def test_any_graph_survives_any_kill_under_forkserver(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], data: st.DataObject
) -> None:
    survive(spec, workers, ahead, 4, "forkserver", data)


@pytest.mark.timeout(1200)
@examples(0.04)
@given(graph_specs(max_length=12), st.integers(1, 2), AHEAD, st.data())
def test_any_graph_survives_a_kill_under_spawn(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], data: st.DataObject
) -> None:
    survive(spec, workers, ahead, 1, "spawn", data)
