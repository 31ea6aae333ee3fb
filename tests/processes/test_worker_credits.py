"""How far a worker runs ahead: chunks and bytes that the consumer has not used up, and whose turn it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.processes.worker_rig import (
    WINDOW,
    ItemsAChunk,
    MakeRig,
    chunks,
    ended,
    epoch,
    fail_at,
    grant,
    items_of,
    shard,
)
from torchpipe.iter import IterableWrapper

# -- chunks -----------------------------------------------------------------------------------


def test_no_more_is_produced_than_was_granted(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(20)))
    assert items_of(worker.run(epoch(shard(), window=3))) == [0, 1, 2]
    assert worker.run() == []
    assert items_of(worker.run(grant(1))) == [3]
    assert items_of(worker.run(grant(1), grant(2))) == [4, 5, 6]
    assert worker.run(grant(0)) == []
    assert items_of(worker.run(grant(2), grant(3))) == [7, 8, 9]  # no more can be used up than was sent


def test_credits_are_chunks_however_many_items_these_have(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(5)
    worker = rig(IterableWrapper(range(40)))
    assert [items for _, items in chunks(worker.run(epoch(shard(), window=2)))] == [[0], [1, 2, 3, 4, 5]]
    assert worker.run() == []
    assert [items for _, items in chunks(worker.run(grant(1)))] == [[6, 7, 8, 9, 10]]
    assert [len(items) for _, items in chunks(worker.run(grant(2)))] == [5, 5]


def test_what_still_waits_for_the_consumer_at_the_start_counts(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(20)))
    assert items_of(worker.run(epoch(shard(held=2), window=3))) == [0]
    assert items_of(worker.run(grant(3))) == [1, 2, 3]


def test_without_credit_nothing_is_produced(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(20)))
    assert worker.run(epoch(shard(held=4), window=4)) == []
    assert items_of(worker.run(grant(1))) == [0]


def test_the_end_needs_credit_and_is_said_once(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(3)))
    sent = worker.run(epoch(shard(), window=3))
    assert items_of(sent) == [0, 1, 2]
    assert ended(sent) == []  # it does not look beyond what was granted
    sent = worker.run(grant(1))
    assert items_of(sent) == []
    assert ended(sent) == [0]
    assert worker.run(grant(5)) == []


def test_an_empty_shard_ends_at_once(rig: MakeRig) -> None:
    sent = rig(IterableWrapper([])).run(epoch(shard()))
    assert chunks(sent) == [(0, [])]
    assert ended(sent) == [0]


@pytest.mark.parametrize("most", [1, 3, 7, 4096])
def test_the_first_item_is_sent_at_once_and_chunks_are_no_larger_than_wanted(
    rig: MakeRig, items_a_chunk: ItemsAChunk, most: int
) -> None:
    items_a_chunk(most)
    sent = rig(IterableWrapper(range(20))).run(epoch(shard()))
    assert items_of(sent) == list(range(20))
    sizes = [len(items) for _, items in chunks(sent)]
    assert sizes[0] == 1
    assert max(sizes) == min(most, 19)
    assert all(size == max(sizes) for size in sizes[1:-1])


def test_suspect_items_are_sent_one_by_one(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    """So that the one that kills its process takes no other with it, and is known."""
    items_a_chunk(100)
    sent = rig(IterableWrapper(range(20))).run(epoch(shard(isolate_before=6, skip=2)))
    assert [items for _, items in chunks(sent)] == [[2], [3], [4], [5], list(range(6, 20))]


def test_a_worker_without_shards_waits(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(3)))
    assert worker.run(epoch()) == []
    assert items_of(worker.run(epoch(shard(), generation=2))) == [0, 1, 2]


@pytest.mark.parametrize("most", [1, 4])
def test_every_item_of_the_epoch_comes_whatever_the_credits(
    rig: MakeRig, items_a_chunk: ItemsAChunk, most: int
) -> None:
    items_a_chunk(most)
    worker = rig(IterableWrapper(range(50)).shuffle(buffer_size=7).sharding_filter())
    whole = items_of(worker.run(epoch(shard(1), num_shards=2)), 1)
    assert len(whole) == 25
    sent = worker.run(epoch(shard(1, held=4), num_shards=2, generation=2, window=4))
    assert sent == []
    rng = random.Random(2)
    while not ended(sent):
        granted = rng.randint(1, 4)
        came = worker.run(grant(granted, 1, generation=2))
        assert len(came) == granted or ended(came)
        sent += came
    assert items_of(sent, 1) == whole


# -- bytes ------------------------------------------------------------------------------------


def array(size_bytes: int) -> Callable[[int], Any]:
    return lambda number: np.full(size_bytes, number % 256, np.uint8)


@pytest.mark.parametrize(
    ("window_bytes", "ahead"), [(1, 2), (1_990_000, 2), (2_500_000, 3), (3_900_000, 4), (10**9, 5)]
)
def test_bytes_bound_how_far_it_runs_ahead(rig: MakeRig, window_bytes: int, ahead: int) -> None:
    """Two chunks are always allowed: one in the consumer's hands, one on its way. What passes the limit is sent."""
    worker = rig(IterableWrapper(range(20)).map(array(1_000_000)))
    sent = worker.run(epoch(shard(), window=5, window_bytes=window_bytes))
    assert [len(items) for _, items in chunks(sent)] == [1] * ahead
    assert worker.run() == []
    for number in range(ahead, 12):
        (message,) = worker.run(grant(1))
        assert message[1][0][0] == number


def test_a_window_of_one_chunk_is_one_whatever_the_bytes(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)).map(array(1_000_000)))
    assert len(worker.run(epoch(shard(), window=1, window_bytes=1))) == 1


def test_chunks_have_no_more_bytes_than_are_quick_to_send(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(4096)
    # Of arrays in the pickle 256 KiB, of those beside it 1 MiB, to the nearest item
    for size_bytes, most in ((1000, 255), (10_000, 26), (20_000, 52), (200_000, 5), (600_000, 2), (800_000, 1)):
        count = min(400, 40_000_000 // size_bytes)
        sent = rig(IterableWrapper(range(count)).map(array(size_bytes))).run(epoch(shard()))
        sizes = [len(items) for _, items in chunks(sent)]
        assert sum(sizes) == count
        assert most * 0.8 <= max(sizes) <= most


def test_small_chunks_use_up_few_bytes_of_the_window(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(500)))
    sent = worker.run(epoch(shard(), window=100, window_bytes=10_000))
    assert len(sent) == 100


# -- several shards ---------------------------------------------------------------------------


def test_shards_take_turns(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(30)).sharding_filter())
    sent = worker.run(epoch(shard(0), shard(1), shard(2), num_shards=3))
    order = [number for number, items in chunks(sent) if items]
    assert order == [0, 1, 2] * 10
    for number in range(3):
        assert items_of(sent, number) == list(range(number, 30, 3))
    assert ended(sent) == [0, 1, 2]


def test_a_shard_without_credit_holds_up_no_other(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(30)).sharding_filter())
    sent = worker.run(epoch(shard(0, held=WINDOW), shard(1), num_shards=2))
    assert items_of(sent, 0) == []
    assert ended(sent) == [1]
    assert items_of(worker.run(grant(2, 0)), 0) == [0, 2]


def test_each_shard_has_the_whole_window(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(30)).sharding_filter())
    sent = worker.run(epoch(shard(0), shard(1), num_shards=2, window=3, window_bytes=1))
    assert [number for number, _ in chunks(sent)] == [0, 1] * 2  # two each are always allowed, whatever their bytes
    sent = worker.run(epoch(shard(0), shard(1, held=2), num_shards=2, window=3, generation=2))
    assert [number for number, _ in chunks(sent)] == [0, 1, 0, 0]


def test_an_error_of_one_shard_leaves_the_others_alone(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)).sharding_filter().map(fail_at(7)))
    sent = worker.run(epoch(shard(0), shard(1), num_shards=2))
    assert items_of(sent, 0) == list(range(0, 20, 2))
    assert items_of(sent, 1) == [1, 3, 5]
    assert ended(sent) == [0]
