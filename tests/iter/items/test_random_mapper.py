"""``random_map``: every item has a random stream of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchpipe.iter import IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def draw(item: Any, rng: np.random.Generator) -> Any:
    return item, rng.random(3), rng.integers(10)


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(9)).random_map(draw))
    check_node(lambda: CountingSource(range(9)).shuffle().sharding_filter().random_map(draw), pulls=lambda k: 9)


def test_L1_what_an_item_draws_depends_on_its_index_alone() -> None:
    def draw_more(item: int, rng: np.random.Generator) -> float:
        first, *_ = [rng.random() for _ in range(item % 3 + 1)]
        return first

    one = list(iterate(IterableWrapper(range(20)).random_map(draw_more)))
    other = list(iterate(IterableWrapper([0] * 20).random_map(draw_more)))
    assert one == other
    assert len(set(one)) == 20


def test_seeds_epochs_shards_and_nodes_differ() -> None:
    node = IterableWrapper([0] * 8).sharding_filter().random_map(lambda item, rng: rng.random())
    twice = IterableWrapper([0]).random_map(lambda i, rng: rng.random()).random_map(lambda i, rng: (i, rng.random()))
    draws = [
        *list(iterate(node)),
        *list(iterate(node, seed=1)),
        *list(iterate(node, epoch=1)),
        *list(iterate(node, shard=0, num_shards=2)),
        *list(iterate(node, shard=1, num_shards=2)),
        *next(iterate(twice, seed=2)),
    ]
    # unsharded and shard 0 share their streams: the shard is a name, not the number of shards
    assert len(set(draws)) == 8 + 8 + 8 + 4 + 2


def test_len() -> None:
    assert len(IterableWrapper(range(3)).random_map(draw)) == 3
