"""What a worker tells besides items: errors in their place, notes for a post-mortem, warnings, a lack of memory."""

from __future__ import annotations

import fcntl
import os
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from reading_services.engine.messages import Notice
from reading_services.processes.arena import Arena
from reading_services.processes.status_page import Field
from reading_services.processes.wire import ChunkMessage
from tests.processes.worker_rig import (
    ItemsAChunk,
    MakeRig,
    Rig,
    Sent,
    chunks,
    epoch,
    fail_at,
    grant,
    items_of,
    only_error,
    shard,
)
from torchpipe import IterDataPipe, NodeIterator
from torchpipe.errors import NotSerializableError, StateError
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.traits import walk
from torchpipe.randomness.seeds import SeedGenerator

Graph = IterDataPipe[Any]

# -- errors -----------------------------------------------------------------------------------


def test_an_error_comes_behind_the_items_before_it(rig: MakeRig) -> None:
    sent = rig(IterableWrapper(range(9)).map(fail_at(4))).run(epoch(shard()))
    assert items_of(sent) == [0, 1, 2, 3]
    error = only_error(sent)
    assert repr(error) == "ValueError('broken at 4')"
    notes = "\n".join(error.__notes__)
    assert "for item 4 of shard 0 of 1, epoch 0" in notes
    assert "in worker 3 (pid" in notes


@pytest.mark.parametrize("most", [1, 2, 100])
def test_an_item_that_cannot_be_sent_is_an_error_in_its_place(
    rig: MakeRig, items_a_chunk: ItemsAChunk, most: int
) -> None:
    items_a_chunk(most)

    class Stubborn:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    graph = IterableWrapper(range(9)).map(lambda item: Stubborn() if item in (3, 5) else item)
    sent = rig(graph, every=2).run(epoch(shard()))
    assert items_of(sent) == [0, 1, 2]
    error = only_error(sent)
    assert isinstance(error, NotSerializableError)
    assert "an item of type" in str(error)
    assert "Stubborn cannot be sent" in str(error)
    assert "lock" in str(error)
    last = sent[-1][0]
    assert isinstance(last, ChunkMessage)
    assert last.snapshot is None  # one would be after items that are not there


def test_an_item_that_cannot_be_sent_comes_before_an_error_behind_it(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(100)
    graph = IterableWrapper(range(9)).map(fail_at(4)).map(lambda item: threading.Lock() if item == 2 else item)
    sent = rig(graph).run(epoch(shard()))
    assert items_of(sent) == [0, 1]
    assert isinstance(only_error(sent), NotSerializableError)


def test_items_that_cannot_go_together_are_an_error(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(2)
    OnlyAlone.count = 0
    sent = rig(IterableWrapper(range(4)).map(lambda item: OnlyAlone(item) if item else item)).run(epoch(shard()))
    assert items_of(sent) == [0]  # which is sent before them
    assert "not with another" in str(only_error(sent))


class OnlyAlone:
    """Can be pickled by itself, but no two of them at a time."""

    count = 0

    def __init__(self, item: int) -> None:
        self.item = item

    def __reduce__(self) -> Any:
        OnlyAlone.count += 1
        if OnlyAlone.count <= 6:  # each in two ways, when it is made; then both together, in two ways
            raise ValueError("not with another")
        return OnlyAlone, (self.item,)


# -- what is noted for a post-mortem ----------------------------------------------------------


def test_the_board_says_which_items_are_being_made(rig: MakeRig) -> None:
    """Items that are begun together are noted together, before the first of them is made."""
    noted: list[tuple[int, int]] = []
    worker: Rig

    def look(item: int) -> int:
        assert worker.page[Field.LANE] == 1
        assert worker.page[Field.NODE] == -1
        index = item // 2
        assert 0 <= index - worker.page[Field.INDEX] < worker.page[Field.COUNT]
        noted.append((worker.page[Field.INDEX], worker.page[Field.COUNT]))
        return item

    worker = rig(IterableWrapper(range(400)).sharding_filter().map(look))
    assert len(items_of(worker.run(epoch(shard(1), num_shards=2)), 1)) == 200
    assert noted[0] == (0, 1)
    assert worker.page[Field.LANE] == -1  # waiting


def test_the_board_while_a_worker_goes_to_its_position(rig: MakeRig) -> None:
    """What dies there dies at the first item that is wanted: those before it were made before."""
    noted: list[tuple[int, ...]] = []
    worker: Rig

    def look(item: int) -> int:
        noted.append(tuple(worker.page[slot] for slot in (Field.LANE, Field.INDEX, Field.COUNT, Field.NODE)))
        return item

    worker = rig(IterableWrapper(range(8)).sharding_filter().map(look))
    worker.run(epoch(shard(1, skip=3), num_shards=2))
    assert noted == [(1, 3, 1, -1)] * 4


def test_suspect_items_are_noted_one_by_one(rig: MakeRig) -> None:
    noted: list[tuple[int, int]] = []
    worker: Rig

    def look(item: int) -> int:
        noted.append((worker.page[Field.INDEX], worker.page[Field.COUNT]))
        return item

    worker = rig(IterableWrapper(range(100)).map(look))
    worker.run(epoch(shard(isolate_before=70)))
    assert noted[:70] == [(index, 1) for index in range(70)]


def test_careful_sends_one_by_one_and_notes_the_node(rig: MakeRig) -> None:
    noted: list[int] = []
    worker: Rig

    def look(item: int) -> int:
        noted.append(worker.page[Field.NODE])
        return item

    graph = IterableWrapper(range(4)).map(look).batch(2).map(lambda batch: look(len(batch)))
    worker = rig(graph)
    sent = worker.run(epoch(shard(), isolate_items=True))
    assert [items for _, items in chunks(sent)] == [[2], [2], []]
    numbers = GraphIndex.of(graph).numbers
    names = {numbers[id(node)]: type(node).__name__ for node in walk(graph)}
    assert [names[number] for number in noted] == ["Mapper", "Mapper", "Mapper"] * 2
    inner, outer = noted[0], noted[2]
    assert inner != outer
    assert noted == [inner, inner, outer] * 2
    assert worker.page[Field.NODE] == -1


# -- warnings ---------------------------------------------------------------------------------


class Plain(IterDataPipe[int]):
    """Without state: resumed by replay, which is announced."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


def notices(sent: Sent) -> list[tuple[str, str]]:
    return [(message.category, message.text) for message, _ in sent if isinstance(message, Notice)]


def test_warnings_while_starting_become_notices(rig: MakeRig) -> None:
    def reset(graph: Graph, info: WorkerInfo, generator: SeedGenerator) -> Graph:
        warnings.warn("of the user's own", DeprecationWarning, stacklevel=1)
        return graph

    worker = rig(Plain(), None, reset)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        sent = worker.run(epoch(shard(skip=4)))
    assert items_of(sent) == [4, 5, 6, 7, 8, 9]
    assert notices(sent) == [("DeprecationWarning", "of the user's own")]  # replays are announced by whoever resumes
    assert isinstance(sent[0][0], Notice)  # before the items


class NoState(IterDataPipe[int]):
    def iterate(self, context: Context) -> NodeIterator[int]:
        return _NoState(self, context)


class _NoState(NodeIterator[int]):
    def run(self) -> Iterator[int]:
        yield from range(10)

    def get_state(self) -> dict[str, Any]:
        raise StateError("not just now")


def test_a_snapshot_that_cannot_be_taken_is_told_once_and_stops_nothing(rig: MakeRig) -> None:
    sent = rig(NoState(), every=2).run(epoch(shard()))
    assert items_of(sent) == list(range(10))
    ((category, text),) = notices(sent)
    assert category == "ReplayWarning"
    assert "no snapshot can be taken of shard 0 after item 2: not just now" in text
    assert all(message.snapshot is None for message, _ in sent if isinstance(message, ChunkMessage))


# -- shared memory ----------------------------------------------------------------------------


def image(number: int) -> Any:
    return np.full(1_000_000, number, np.uint8)


def test_large_items_are_sent_in_shared_memory(rig: MakeRig) -> None:
    sent = rig(IterableWrapper(range(6)).map(image), arena=Arena()).run(epoch(shard(), window=4))
    messages = [message for message, _ in sent if isinstance(message, ChunkMessage)]
    assert [message.layout.slot for message in messages] == [0, 1, 2, 3]  # all of them in use
    assert [int(item[0]) for item in items_of(sent)] == [0, 1, 2, 3]


def tensor(number: int) -> torch.Tensor:
    return torch.full((500_000,), number, dtype=torch.uint8)


def test_batches_are_collated_in_shared_memory(rig: MakeRig) -> None:
    sent = rig(IterableWrapper(range(8)).map(tensor).batch(2).collate(), arena=Arena()).run(epoch(shard(), window=4))
    messages = [message for message, _ in sent if isinstance(message, ChunkMessage)]
    assert [[place.slot for place in message.layout.placed] for message in messages] == [[0], [1], [2], [3]]
    assert all(message.layout.slot == -1 for message in messages)
    assert [item[:, 0].tolist() for item in items_of(sent)] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_slots_of_used_up_chunks_are_used_again(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(9)).map(image), arena=Arena())
    kept = items_of(worker.run(epoch(shard(), window=2)))
    for number in range(2, 9):
        del kept[0]
        kept += items_of(worker.run(grant(1)))
        assert [int(item[0]) for item in kept] == [number - 1, number]
        assert all((item == item[0]).all() for item in kept)
    ((message, _),) = worker.run(grant(1))
    assert isinstance(message, ChunkMessage)
    assert message.ended


def test_a_lack_of_shared_memory_is_told_once_and_changes_no_item(rig: MakeRig) -> None:
    full = os.memfd_create("full", os.MFD_ALLOW_SEALING)
    os.ftruncate(full, 4096)
    fcntl.fcntl(full, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    sent = rig(IterableWrapper(range(6)).map(image), arena=Arena(full)).run(epoch(shard()))
    assert [int(item[0]) for item in items_of(sent)] == [0, 1, 2, 3, 4, 5]
    ((category, text),) = notices(sent)
    assert category == "UserWarning"
    assert "shared memory is short" in text
    assert "Operation not permitted" in text
    assert "worker_prefetch_cnt" in text
