"""L1 and L2 with measuring: nodes that are timed, or were and are no more, give the same items, and the same states."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import make_loader, make_service, oracle
from tests.laws.graphs import GraphSpec, graph_specs
from tests.laws.test_L1_one_stream import RICH
from tests.tries import tries
from torchpipe.stats import tracing


@pytest.fixture(params=["timed throughout", "given up soon"], autouse=True)
def pace(request: pytest.FixtureRequest) -> object:
    """Forked workers have it too."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "given up soon":
            patch.setattr(tracing, "_AT_FIRST_NS", 0)
            patch.setattr(tracing, "_LOOK", 5)
        yield


def measured(graph: GraphSpec, workers: int | None, num_shards: int, epochs: int = 2) -> list[list[str]]:
    with make_loader(graph, make_service(workers, num_shards)) as loader:
        loader.measuring = True
        return [[repr(item) for item in loader] for _ in range(epochs)]


@given(graph_specs(), st.integers(1, 3))
@settings(max_examples=tries(15))
def test_L1_measuring_does_not_matter(spec: GraphSpec, num_shards: int) -> None:
    assert measured(spec, None, num_shards) == oracle(spec, num_shards)


@pytest.mark.parametrize("dispatched", [False, True])
def test_L1_measuring_does_not_matter_in_workers(dispatched: bool) -> None:
    spec = (*RICH[:3], dispatched)
    assert measured(spec, 2, 3) == oracle(spec, 3)


@given(st.data())
@settings(max_examples=tries(10))
def test_L2_a_state_goes_on_with_and_without_measuring(data: st.DataObject) -> None:
    expected = oracle(RICH, 2, epochs=1)[0]
    position = data.draw(st.integers(0, len(expected) - 1))
    first, then = data.draw(st.booleans()), data.draw(st.booleans())
    with make_loader(RICH, make_service(None, 2)) as loader:
        loader.measuring = first
        received = [repr(item) for item in itertools.islice(loader, position)]
        state = loader.state_dict()
    with make_loader(RICH, make_service(None, 2)) as loader:
        loader.measuring = then
        loader.load_state_dict(state)
        received += [repr(item) for item in loader]
    assert received == expected
