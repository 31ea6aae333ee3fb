"""L1, one stream: a function of (graph, seed, epoch, num_shards) alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.executors import PROCESSES, make_loader, make_service, oracle, run
from tests.laws.graphs import GraphSpec, graph_specs, text_of
from tests.tries import tries
from torchpipe import InProcessReadingService
from torchpipe.iter import IterableWrapper

RICH: GraphSpec = (
    37,
    (("shuffle", 4), ("repeat", 2)),
    (("global_random", 1), ("item_random", 1), ("filter", 3), ("shuffle", 3), ("prefetch", 2), ("batch", 2)),
    False,
)


@given(graph_specs(), st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.integers(0, 3))
@settings(max_examples=tries(25))
def test_L1_worker_count_and_prefetch_do_not_matter(
    spec: GraphSpec, num_shards: int, workers: int, worker_prefetch: int, main_prefetch: int
) -> None:
    service = make_service(
        min(workers, num_shards), num_shards, worker_prefetch_cnt=worker_prefetch, main_prefetch_cnt=main_prefetch
    )
    assert run(spec, service) == oracle(spec, num_shards)


@pytest.mark.parametrize("context", PROCESSES)
def test_L1_start_method_does_not_matter(context: str) -> None:
    assert run(RICH, make_service(2, 3, context=context), epochs=3) == oracle(RICH, 3, epochs=3)


@given(graph_specs(), st.integers(1, 3), st.integers(1, 4))
def test_L1_snapshots_do_not_matter(spec: GraphSpec, num_shards: int, every: int) -> None:
    assert run(spec, make_service(None, num_shards, every=every)) == oracle(spec, num_shards)


def test_L1_seed_and_epoch_matter_and_repeat() -> None:
    first = oracle(RICH, 2, epochs=3)
    assert first == oracle(RICH, 2, epochs=3)
    assert len({tuple(epoch) for epoch in first}) == 3
    with make_loader(RICH, InProcessReadingService(num_shards=2), seed=6) as loader:
        assert text_of(loader) != first[0]
        loader.seed(5)
        assert text_of(loader) == first[0]
        loader.set_epoch(2)
        assert text_of(loader) == first[2]


def test_L1_every_item_reaches_one_shard() -> None:
    graph = IterableWrapper(range(101)).shuffle(buffer_size=101).sharding_filter()
    for num_shards in (1, 2, 3, 7):
        with make_loader(graph, make_service(None, num_shards)) as loader:
            assert sorted(loader) == list(range(101))


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_L1_neither_reads_nor_changes_the_users_random_states(workers: int | None) -> None:
    def states() -> tuple[object, ...]:
        numpy_state = np.random.get_state()
        return random.getstate(), numpy_state[1].tobytes(), numpy_state[2:], torch.get_rng_state().tolist()

    expected = oracle(RICH, 2, epochs=1)
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = states()
    assert run(RICH, make_service(workers, 2), epochs=1) == expected
    assert states() == before
    with make_loader(RICH, make_service(workers, 2)) as loader:
        drawn = [
            (random.random(), float(np.random.rand()), float(torch.rand(()))) for _ in loader
        ]  # in the user's loop
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    assert drawn == [(random.random(), float(np.random.rand()), float(torch.rand(()))) for _ in drawn]
