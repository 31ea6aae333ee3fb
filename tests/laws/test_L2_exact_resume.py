"""L2, exact resume: after k delivered items, a state continues with item k + 1, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reading_services import ReadingServiceInterface
from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.tries import tries

RICH: GraphSpec = (
    37,
    (("shuffle", 4),),
    (("global_random", 1), ("flatmap_lazy", 1), ("filter", 3), ("shuffle", 3), ("cycle", 2), ("batch", 3)),
    False,
)


def state_after(spec: GraphSpec, service: ReadingServiceInterface, count: int) -> dict[str, Any]:
    """The state that a run has after ``count`` items of its first epoch; StopIteration is not pulled."""
    with make_loader(spec, service) as loader:
        iterator = iter(loader)
        for _ in range(count):
            next(iterator)
        return loader.state_dict()


def rest_of(spec: GraphSpec, service: ReadingServiceInterface, state: dict[str, Any]) -> list[str]:
    with make_loader(spec, service) as loader:
        loader.load_state_dict(state)
        return text_of(loader)


@given(graph_specs(max_length=25), st.integers(1, 3), st.integers(1, 4), st.data())
@settings(max_examples=tries(60))
def test_L2_resume_at_any_position(spec: GraphSpec, num_shards: int, every: int, data: st.DataObject) -> None:
    first, _ = oracle(spec, num_shards)
    count = data.draw(st.integers(0, len(first)))
    state = state_after(spec, make_service(None, num_shards, every=every), count)
    # Behind the last item, nothing is left
    assert rest_of(spec, make_service(None, num_shards, every=every), state) == first[count:]


@pytest.mark.nightly
def test_L2_resume_at_every_position() -> None:
    first, _ = oracle(RICH, 2)
    for count in range(len(first) + 1):
        for every in (1, 3, None):
            state = state_after(RICH, make_service(None, 2, every=every), count)
            assert rest_of(RICH, make_service(None, 2, every=every), state) == first[count:], (count, every)


@given(graph_specs(), st.integers(1, 3), st.integers(1, 4), st.data())
@settings(max_examples=tries(15))
def test_L2_resume_with_workers(spec: GraphSpec, num_shards: int, every: int, data: st.DataObject) -> None:
    first, _ = oracle(spec, num_shards)
    count = data.draw(st.integers(0, len(first)))
    state = state_after(spec, make_service(num_shards, num_shards, every=every), count)
    assert rest_of(spec, make_service(num_shards, num_shards, every=every), state) == first[count:]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.sampled_from([None, 2]))
@settings(max_examples=tries(15))
def test_L2_resume_of_a_resume(steps: list[int], workers: int | None) -> None:
    """A run that is stopped again and again, also straight after loading, is one run."""
    epochs = oracle(RICH, 2, epochs=6)
    expected = [item for epoch in epochs for item in epoch]
    got: list[str] = []
    state: dict[str, Any] | None = None
    for step in steps:
        with make_loader(RICH, make_service(workers, 2, every=2)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            for _ in range(step):
                try:
                    got.append(repr(next(iterator)))
                except StopIteration:
                    iterator = iter(loader)
            state = loader.state_dict()
    assert got == expected[: len(got)]


def test_L2_the_end_of_an_epoch_seen_or_not() -> None:
    first, second, third = oracle(RICH, 2, epochs=3)
    with make_loader(RICH, make_service(None, 2)) as loader:
        iterator = iter(loader)
        for _ in first:
            next(iterator)
        unseen = loader.state_dict()
        assert next(iterator, "end") == "end"
        seen = loader.state_dict()
    assert (seen["epoch"], seen["delivered"]) == (1, 0)
    for state in (unseen, seen):
        with make_loader(RICH, make_service(None, 2)) as loader:
            loader.load_state_dict(state)
            if state is unseen:
                assert text_of(loader) == []
            assert text_of(loader) == second
            assert text_of(loader) == third


def test_L2_saving_does_not_disturb() -> None:
    first, _ = oracle(RICH, 2)
    with make_loader(RICH, make_service(2, 2, every=1)) as loader:
        got = []
        for item in loader:
            got.append(repr(item))
            loader.state_dict()
    assert got == first
