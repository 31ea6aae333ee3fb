"""L1, L2 and L3 on Ray actors: the stream and its states are those of every other way to run the graph."""

from __future__ import annotations

from typing import Any

import pytest

from reading_services import MultiProcessingReadingService, RayReadingService, RayWorkers
from tests.actors.cluster_rig import GRAPHS, in_process, ray_loader, seeded, texts
from torchpipe.testing import check_reading_service


@pytest.mark.sample
@pytest.mark.parametrize(
    "kind", ["dispatched", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in GRAPHS if kind != "dispatched")]
)
def test_L1_the_stream_is_that_of_one_process_in_every_epoch(kind: str) -> None:
    oracle = in_process(GRAPHS[kind](), 4)
    wanted = [texts(oracle) for _ in range(2)]
    with ray_loader(GRAPHS[kind](), 2, 4) as loader:
        assert [texts(loader) for _ in range(2)] == wanted


@pytest.mark.sample
@pytest.mark.parametrize(
    "kind", ["dispatched", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("shuffled", "packed"))]
)
def test_L3_a_run_moves_between_a_process_and_processes_and_actors_in_mid_epoch(kind: str) -> None:
    make = GRAPHS[kind]
    wanted = texts(in_process(make(), 4))
    got: list[str] = []
    state = None
    stations: list[Any] = [
        lambda: in_process(make(), 4),
        lambda: ray_loader(make(), 2, 4),
        lambda: seeded(make(), MultiProcessingReadingService(2, num_shards=4)),
        lambda: ray_loader(make(), 3, 4),
    ]
    step = max(1, len(wanted) // 5)
    for number, station in enumerate(stations):
        with station() as loader:
            if state is not None:
                loader.load_state_dict(state)
            stream = iter(loader)
            last = number == len(stations) - 1
            got += texts(stream) if last else [texts([next(stream)])[0] for _ in range(step)]
            state = loader.state_dict()
    assert got == wanted


def test_L1_to_L4_as_every_reading_service(cluster: Any) -> None:
    check_reading_service(
        lambda num_shards: RayReadingService(2, num_shards=num_shards, worker_method=RayWorkers(num_cpus=0.5)),
        num_shards=3,
        thorough=False,
    )


def test_batches_can_be_written_to() -> None:
    with ray_loader(GRAPHS["shuffled"](), 1, 1) as loader:
        for batch in loader:
            for _, _, tensor in batch:
                tensor.add_(1)


def test_large_items_come_whole_and_few_of_them_are_in_memory() -> None:
    import torch

    from torchpipe.iter import IterableWrapper

    graph = IterableWrapper(range(40)).sharding_filter().map(lambda number: torch.full((1 << 20,), float(number)))
    with ray_loader(graph, 2, 2, worker_prefetch_bytes=8 << 20) as loader:
        for number, item in enumerate(loader):
            assert item.shape == (1 << 20,)
            assert bool((item == number).all())
        assert max(queue.bytes for queue in loader.stats().queues) <= 12 << 20
