"""Random graphs x random cut x random number of workers x random kills, under every start method."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, oracle, pids
from tests.laws.graphs import GraphSpec, graph_specs

SHARDS = 3
Kill = tuple[int, int, str]  # before which item (of both epochs), which of the processes, how

KILLS = st.lists(
    st.tuples(st.integers(0, 80), st.integers(0, 3), st.sampled_from(["SIGKILL", "SIGSEGV", "SIGTERM"])),
    min_size=1,
    max_size=4,
)


def survive(spec: GraphSpec, workers: int, ahead: tuple[int, int, int], kills: list[Kill], context: str) -> None:
    worker_prefetch, main_prefetch, every = ahead
    expected = oracle(spec, SHARDS)
    # Kills may fall on one position by chance, which is not what this is about: a large budget
    service = make_service(
        workers,
        SHARDS,
        context=context,
        every=every,
        max_deaths=1000,
        worker_prefetch_cnt=worker_prefetch,
        main_prefetch_cnt=main_prefetch,
    )
    count = 0
    with make_loader(spec, service) as loader:

        def strike() -> None:
            running = pids(loader)
            for at, victim, how in kills:
                if at == count and running:
                    try:
                        os.kill(running[victim % len(running)], getattr(signal, how))
                    except ProcessLookupError:
                        pass

        for epoch in expected:
            iterator, got = iter(loader), []
            strike()
            for item in iterator:
                got.append(repr(item))
                count += 1
                strike()
            assert got == epoch


AHEAD = st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(1, 7))


def examples(share: float) -> Callable[[object], object]:
    """That share of the profile's number of examples: starting a process costs seconds under spawn."""
    return settings(max_examples=max(1, round(settings().max_examples * share)))


@examples(1.0)
@given(graph_specs(), st.integers(1, SHARDS), AHEAD, KILLS)
def test_any_graph_survives_any_kill(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], kills: list[Kill]
) -> None:
    survive(spec, workers, ahead, kills, "fork")


@examples(0.1)
@given(graph_specs(), st.integers(1, SHARDS), AHEAD, KILLS)
def test_any_graph_survives_any_kill_under_forkserver(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], kills: list[Kill]
) -> None:
    survive(spec, workers, ahead, kills, "forkserver")


@pytest.mark.timeout(300)
@examples(0.04)
@given(graph_specs(max_length=12), st.integers(1, 2), AHEAD, KILLS.map(lambda kills: [(0, *kills[0][1:])]))
def test_any_graph_survives_a_kill_under_spawn(
    spec: GraphSpec, workers: int, ahead: tuple[int, int, int], kills: list[Kill]
) -> None:
    survive(spec, workers, ahead, kills, "spawn")
