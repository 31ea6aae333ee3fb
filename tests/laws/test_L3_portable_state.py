"""L3, portable state: saved under any executor and worker count, loaded under any other with the same num_shards."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.laws.test_L2_exact_resume import RICH, rest_of, state_after
from tests.tries import tries
from torchpipe.errors import StateError, StateMismatchError

EXECUTORS = st.sampled_from([None, 0, 1, 2, 3])


@given(graph_specs(), EXECUTORS, EXECUTORS, st.data())
@settings(max_examples=tries(25))
def test_L3_any_executor_to_any_other(
    spec: GraphSpec, saving: int | None, loading: int | None, data: st.DataObject
) -> None:
    first, _ = oracle(spec, 3)
    count = data.draw(st.integers(0, len(first)))
    state = state_after(spec, make_service(saving, 3, every=2), count)
    assert rest_of(spec, make_service(loading, None), state) == first[count:]


def test_L3_between_start_methods() -> None:
    first, _ = oracle(RICH, 3)
    state = state_after(RICH, make_service(2, 3, context="forkserver"), 5)
    assert rest_of(RICH, make_service(3, 3, context="fork"), state) == first[5:]


def test_L3_an_unset_num_shards_is_adopted(caplog: pytest.LogCaptureFixture) -> None:
    first, second = oracle(RICH, 3)
    state = state_after(RICH, make_service(None, 3), 4)
    with make_loader(RICH, make_service(8, None)) as loader, caplog.at_level(logging.WARNING, "torchpipe"):
        assert loader.num_shards == 8
        loader.load_state_dict(state)
        assert loader.num_shards == 3
        assert text_of(loader) == first[4:]
        assert text_of(loader) == second
    assert "starting 3 workers in place of num_workers=8" in caplog.text


def test_L3_stages_that_only_move_items_do_not_matter() -> None:
    length, before, after, dispatched = RICH
    with_prefetch: GraphSpec = (length, before, (*after, ("prefetch", 3)), dispatched)
    first, _ = oracle(RICH, 2)
    assert rest_of(with_prefetch, make_service(None, 2), state_after(RICH, make_service(None, 2), 7)) == first[7:]
    assert rest_of(RICH, make_service(None, 2), state_after(with_prefetch, make_service(2, 2), 7)) == first[7:]


def test_L3_what_does_not_fit_is_refused_with_both_sides() -> None:
    state = state_after(RICH, make_service(None, 2), 3)
    other: GraphSpec = (RICH[0], RICH[1], (*RICH[2][:-1], ("batch", 4)), False)
    with make_loader(other, make_service(None, 2)) as loader:
        with pytest.raises(StateMismatchError, match=r"(?s)another graph.*batch_size=3.*batch_size=4"):
            loader.load_state_dict(state)
        assert text_of(loader) == oracle(other, 2)[0]  # and the loader is as it was
    with (
        make_loader(RICH, make_service(None, 3)) as loader,
        pytest.raises(StateMismatchError, match="num_shards=2.*num_shards=3"),
    ):
        loader.load_state_dict(state)
    with (
        make_loader(RICH, make_service(None, 2)) as loader,
        pytest.raises(StateMismatchError, match="version 99.*version 2"),
    ):
        loader.load_state_dict(state | {"version": 99})


@given(st.binary(max_size=200))
def test_L3_damaged_payloads_are_refused(garbage: bytes) -> None:
    state = state_after(RICH, make_service(None, 1), 2)
    with make_loader(RICH, make_service(None, 1)) as loader, pytest.raises(StateError):
        loader.load_state_dict(state | {"payload": garbage})
