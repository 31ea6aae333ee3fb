"""``in_batch_shuffle`` and ``bucketbatch``, which is made of it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from torchpipe.errors import StateError
from torchpipe.iter import DataChunk, IterableWrapper
from torchpipe.node.datapipe import iterate
from torchpipe.testing import CountingSource, check_node


def test_L2_exact_resume() -> None:
    check_node(lambda: CountingSource(range(14)).batch(4).in_batch_shuffle(), pulls=lambda k: 4 * k)


@pytest.mark.parametrize("sort_key", [None, sorted])
@pytest.mark.parametrize("by_pools", [True, False])
def test_L2_exact_resume_of_buckets(sort_key: Any, by_pools: bool) -> None:
    check_node(
        lambda: CountingSource(range(23)).bucketbatch(
            3, batch_num=2, bucket_num=2, sort_key=sort_key, use_in_batch_shuffle=by_pools
        ),
        pulls=lambda k: 23,
    )


def test_every_order_within_a_batch_has_the_same_chance() -> None:
    node = IterableWrapper(range(3)).batch(3).in_batch_shuffle()
    counts = Counter(tuple(next(iterate(node, epoch=epoch))) for epoch in range(3000))
    assert len(counts) == 6
    assert all(400 < count < 600 for count in counts.values())


def test_batches_keep_their_items() -> None:
    node = IterableWrapper(range(60)).batch(20).in_batch_shuffle()
    batches = list(iterate(node))
    assert [type(batch) for batch in batches] == [DataChunk] * 3
    assert [sorted(batch) for batch in batches] == [list(range(start, start + 20)) for start in (0, 20, 40)]
    assert [batch.index(start) for batch, start in zip(batches, (0, 20, 40))] != [0, 0, 0]
    assert len(node) == 3
    assert list(iterate(node.set_shuffle(False))) == list(IterableWrapper(range(60)).batch(20))


def test_switching_and_seeding_as_torchs_loaders_do() -> None:
    node = IterableWrapper(range(60)).batch(20).in_batch_shuffle()
    assert list(node.set_seed(3)) == list(node)
    state = iterate(node).state_dict()
    with pytest.raises(StateError, match="set_shuffle"):
        iterate(node.set_shuffle(False)).load_state_dict(state)


def test_buckets_hold_items_of_like_size() -> None:
    words = IterableWrapper(["x" * (1 + number * 7 % 30) for number in range(30)])
    node = words.bucketbatch(5, batch_num=6, sort_key=partial(sorted, key=len))
    batches = list(iterate(node))
    assert sorted(len(word) for batch in batches for word in batch) == list(range(1, 31))
    assert all(max(map(len, batch)) - min(map(len, batch)) == 4 for batch in batches)
    mixed = [len(batch[0]) for batch in iterate(words.bucketbatch(5, batch_num=6, bucket_num=6, sort_key=sorted))]
    assert mixed != sorted(mixed)
    assert len(list(iterate(words.bucketbatch(4, drop_last=True)))) == 7
