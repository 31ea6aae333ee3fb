"""``DataLoader2.skip``: what follows is as if the items had been taken, for any graph, with workers, over resumes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from reading_services import MultiProcessingReadingService
from tests.laws.graphs import GraphSpec, build, graph_specs
from tests.skipping import driven, steps
from tests.tries import tries
from torchpipe import DataLoader, DataLoader2, InProcessReadingService
from torchpipe.iter import IterableWrapper


@given(spec=graph_specs(), program=steps)
@settings(max_examples=tries(40))
def test_L2_a_skip_is_as_many_nexts(spec: GraphSpec, program: list[tuple[str, int]]) -> None:
    def make(_: int) -> DataLoader2[Any]:
        loader = DataLoader2(build(spec), reading_service=InProcessReadingService(num_shards=2))
        loader.seed(3)
        return loader

    assert driven(make, program, True) == driven(make, program, False)


@given(spec=graph_specs(), program=steps)
@settings(max_examples=tries(5))
def test_L2_in_workers_and_elsewhere_after_a_resume(spec: GraphSpec, program: list[tuple[str, int]]) -> None:
    def make(resumes: int) -> DataLoader2[Any]:
        service: Any = InProcessReadingService(num_shards=3)
        if resumes % 2 == 0:
            service = MultiProcessingReadingService(num_workers=2, num_shards=3)
        loader = DataLoader2(build(spec), reading_service=service)
        if not resumes:
            loader.seed(3)
        return loader

    assert driven(make, program, True) == driven(make, program, False)


def fails_at_5(number: int) -> int:
    if number == 5:
        raise ValueError(number)
    return number


def test_the_end_of_the_epoch_and_what_making_raises() -> None:
    loader = DataLoader2(IterableWrapper(range(10)).map(fails_at_5))
    with pytest.raises(ValueError, match="5"):
        loader.skip(7)
    loader = DataLoader2(IterableWrapper(range(10)))
    assert loader.skip(4) == 4
    assert loader.epoch == 0
    assert loader.skip(2) == 2
    assert loader.state_dict()["delivered"] == 6
    assert loader.skip(100) == 4
    assert loader.epoch == 0  # its rest is empty
    assert list(loader) == []
    assert loader.epoch == 1
    stream = iter(loader)
    assert [next(stream), loader.skip(3), next(stream), loader.skip(0), loader.skip(50)] == [0, 3, 4, 0, 5]
    assert list(stream) == []
    with pytest.raises((ValueError, TypeError), match="steps"):
        loader.skip(-1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["graph", "dataset"])
def test_behind_all_items_the_loop_ends_the_epoch_itself(kind: str, workers: int) -> None:
    def make() -> Any:
        if kind == "dataset":
            return DataLoader(range(20), 2, num_workers=workers)  # type: ignore[arg-type]
        service = MultiProcessingReadingService(num_workers=workers) if workers else None
        loader = DataLoader2(IterableWrapper(range(20)).shuffle().sharding_filter().batch(2), reading_service=service)
        loader.seed(1)
        return loader

    with make() as loader:
        stream = iter(loader)
        next(stream)
        assert loader.skip(1000) == 9
        assert loader.epoch == 0
        assert loader.skip(1) == 0
        state = loader.state_dict()
        assert (state["epoch"], state["delivered"]) == (0, 10)
        assert list(stream) == []
        assert loader.epoch == 1
        following = [str(item) for item in loader]
    with make() as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
        assert [str(item) for item in loader] == following
    with make() as loader:
        assert loader.skip(1000) == 10
        assert loader.epoch == 0
        assert list(loader) == []
        assert loader.epoch == 1
