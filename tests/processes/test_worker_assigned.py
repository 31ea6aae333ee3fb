"""A worker's loop where its items are made of what is dealt: how far it runs ahead, and where batches are made."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import torch
from torch.utils.data import default_collate

from reading_services.engine.messages import Deal, StartEpoch
from reading_services.processes.arena import Arena
from reading_services.processes.wire import ChunkMessage
from tests.processes.worker_rig import ItemsAChunk, MakeRig, chunks, epoch, grant, items_of, shard
from torchpipe.data.fetch import Fetch
from torchpipe.data.nodes import FetchAssigned


class Images:
    """Sample ``i`` is so many bytes of ``i``."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.size_bytes,), index, dtype=torch.uint8)


def batches_of(size_bytes: int) -> FetchAssigned:
    return FetchAssigned(Fetch(Images(size_bytes), True, default_collate), as_torch=False, base_seed=0)


def dealt_epoch(window: int) -> StartEpoch:
    return dataclasses.replace(epoch(shard(), window=window), from_entries=True)


def deal(batches: range) -> Deal:
    entries = [pickle.dumps((number, [2 * number, 2 * number + 1])) for number in batches]
    return Deal.of(1, 0, entries, False)


def numbers(sent: Any) -> list[list[int]]:
    return [item[:, 0].tolist() for item in items_of(sent)]


def test_batches_are_sent_from_the_memory_that_they_were_made_in(rig: MakeRig) -> None:
    sent = rig(batches_of(500_000), arena=Arena()).run(dealt_epoch(window=3), deal(range(9)))
    messages = [message for message, _ in sent if isinstance(message, ChunkMessage)]
    assert [[place.slot for place in message.layout.placed] for message in messages] == [[0], [1], [2]]
    assert all(message.layout.slot == -1 for message in messages)
    assert numbers(sent) == [[0, 1], [2, 3], [4, 5]]


def test_large_batches_are_made_no_further_ahead_than_the_window_says(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(4)
    worker = rig(batches_of(600_000), arena=Arena())
    assert numbers(worker.run(dealt_epoch(window=2), deal(range(9)))) == [[0, 1], [2, 3]]
    assert numbers(worker.run(grant(1))) == [[4, 5]]


def test_of_small_batches_some_chunks_more_are_made(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(4)
    worker = rig(batches_of(10))
    sent = worker.run(dealt_epoch(window=2), deal(range(100)))
    assert [len(items) for _, items in chunks(sent)] == [1] + [4] * 9
    assert len(items_of(worker.run(grant(3)))) == 12
    assert len(items_of(worker.run(grant(10)))) == 40


def test_never_more_than_was_dealt(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(4)
    worker = rig(batches_of(10))
    assert len(items_of(worker.run(dealt_epoch(window=2), deal(range(7))))) == 7
    assert len(items_of(worker.run(deal(range(7, 9))))) == 2
