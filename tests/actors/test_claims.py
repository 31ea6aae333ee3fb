"""Claims with Ray: actors make the items, others work on them and send back numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.actors.cluster_rig import ray_loader
from torchpipe.iter import IterableWrapper

ITEMS = 40


def graph() -> Any:
    return IterableWrapper([[number] for number in range(ITEMS)]).shuffle().sharding_filter().shuffle(buffer_size=5)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_what_tasks_have_answered_is_finished_and_the_rest_is_given_again(workers: int) -> None:
    import ray

    @ray.remote(num_cpus=0.01)
    def answer(item: list[int], number: Any) -> tuple[Any, int]:
        item.append(0)  # of a copy
        return number, item[0]

    with ray_loader(graph(), 2, 4) as loader:
        claims = loader.claims(ahead=12, keep_results=True)
        given: dict[tuple[int, int], list[int]] = {}
        for claim in claims:
            given[claim.number[:2]] = [*claim.item]
            task = answer.remote(claim.item, claim.number)
            if claim.ordinal % 4:
                assert claims.done(*ray.get(task))
            if claim.ordinal == 25:
                break
        state = loader.state_dict()
        results = {item: result for item, (result,) in claims.take()}
    assert {item: value for item, (value,) in given.items() if item[1] % 4} == results
    with ray_loader(graph(), workers, 4) as loader:
        loader.load_state_dict(state)
        claims = loader.claims(ahead=ITEMS)
        again = {claim.number[:2]: claim.item for claim in claims}
        assert [ordinal for _, ordinal in again] == [*range(0, 26, 4), *range(26, ITEMS)]
        assert all(given[item] == value for item, value in again.items() if item in given)
        finished = [*results.values(), *(value for (value,) in again.values())]
        assert sorted(finished) == list(range(ITEMS))
