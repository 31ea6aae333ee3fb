"""A worker's epochs: how one ends and the next begins, the positions that it begins at, init and reset functions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from reading_services.processes.wire import ChunkMessage, EndEpoch, ReadyMessage, Stop
from tests.processes.worker_rig import (
    ItemsAChunk,
    MakeRig,
    Rig,
    ended,
    epoch,
    grant,
    items_of,
    only_error,
    shard,
)
from torchpipe import IterDataPipe, NodeIterator
from torchpipe.errors import StateError
from torchpipe.execution.epoch import WorkerInfo
from torchpipe.iter import IterableWrapper
from torchpipe.node.context import Context
from torchpipe.node.failures import load_error
from torchpipe.randomness.seeds import SeedGenerator
from torchpipe.state import Cursor

Graph = IterDataPipe[Any]


def test_nothing_is_produced_after_the_end_of_an_epoch(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)))
    assert items_of(worker.run(epoch(shard(), window=1))) == [0]
    assert worker.run(EndEpoch(generation=1), grant(5)) == []
    assert worker.run(grant(5), EndEpoch(generation=1)) == []


def test_what_belongs_to_another_generation_is_ignored(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(20)))
    worker.run(epoch(shard(), generation=4, window=1))
    stale = (grant(5, generation=3), EndEpoch(generation=3), grant(5, generation=5), grant(5, 1, generation=4))
    assert worker.run(*stale) == []
    sent = worker.run(grant(1, generation=4))
    assert items_of(sent) == [1]
    assert [message.generation for message, _ in sent if isinstance(message, ChunkMessage)] == [4]


def test_a_new_epoch_replaces_the_one_before(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(1)
    worker = rig(IterableWrapper(range(10)).shuffle())
    first = items_of(worker.run(epoch(shard(), window=3)))
    assert len(first) == 3
    sent = worker.run(epoch(shard(), generation=2, number=1))
    again = items_of(worker.run(epoch(shard(), generation=3, number=0)))
    assert sorted(items_of(sent)) == list(range(10))
    assert items_of(sent) != again
    assert again[:3] == first


def test_stop_comes_before_what_is_left_to_do(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(10)))
    assert worker.run(epoch(shard()), Stop(), grant(1)) == []
    assert worker.stopped


def test_iterators_are_closed_with_their_epoch(rig: MakeRig) -> None:
    closed: list[int] = []
    worker = rig(TellsItsEnd(closed))
    for messages, count in (
        ((epoch(shard(), window=1), EndEpoch(generation=1)), 1),
        ((epoch(shard(), generation=2, window=1), epoch(shard(), generation=3, window=1)), 2),
        ((epoch(shard(), generation=4),), 4),
    ):
        worker.run(*messages)
        assert len(closed) == count
    worker.run(epoch(shard(), generation=5, window=1))
    worker.run(Stop())
    assert len(closed) == 5


class TellsItsEnd(IterDataPipe[int]):
    def __init__(self, closed: list[int]) -> None:
        self.tell_end = lambda: closed.append(1)  # a function goes by reference into the copy that a pass works on

    def iterate(self, context: Context) -> NodeIterator[int]:
        return _TellsItsEnd(self, context)


class _TellsItsEnd(NodeIterator[int]):
    node: TellsItsEnd

    def run(self) -> Iterator[int]:
        yield from range(3)

    def close(self) -> None:
        if not self.pass_engine.is_closed:
            self.node.tell_end()
        super().close()


def test_a_message_that_is_none_of_a_workers() -> None:
    worker = Rig(IterableWrapper([1]))
    with pytest.raises(TypeError, match="cannot handle Ready"):
        worker.run(ReadyMessage(pid=1))
    worker.close()


# -- positions --------------------------------------------------------------------------------


def test_snapshots_and_skips_lead_to_the_same_place(rig: MakeRig, items_a_chunk: ItemsAChunk) -> None:
    items_a_chunk(3)
    graph = IterableWrapper(range(40)).shuffle(buffer_size=5).sharding_filter().map(draw)
    worker = rig(graph, every=4)
    sent = worker.run(epoch(shard()))
    whole = items_of(sent)
    assert ended(sent) == [0]
    after, generation = 0, 1
    positions: list[tuple[bytes | None, int]] = [(None, 0)]
    for message, _ in sent:
        assert isinstance(message, ChunkMessage)
        after += message.count
        if message.snapshot is not None:
            assert after % 4 == 0
            positions.append((message.snapshot, after))
    assert len(positions) == 11
    for snapshot, taken_at in positions:
        for skip in (0, 3):
            if taken_at + skip <= len(whole):
                generation += 1
                start = replace(shard(), cursor=Cursor(snapshot, skip, taken_at + skip))
                assert items_of(worker.run(epoch(start, generation=generation))) == whole[taken_at + skip :]


def draw(item: int) -> tuple[int, float, float, float]:
    return item, random.random(), float(np.random.random()), float(torch.rand(()))


def test_a_position_beyond_the_end_is_an_error_that_says_so(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(5)))
    error = only_error(worker.run(epoch(shard(skip=9))))
    assert isinstance(error, StateError)
    assert "ended after 5 of 9" in str(error)
    assert "while shard 0 of 1 was being started" in "\n".join(error.__notes__)
    assert items_of(worker.run(epoch(shard(), generation=2))) == list(range(5))  # and the worker goes on


# -- init and reset functions -----------------------------------------------------------------


def test_init_once_for_each_shard_and_reset_in_each_epoch(rig: MakeRig) -> None:
    called: list[tuple[str, WorkerInfo]] = []
    seeds: list[int] = []

    def init(graph: Graph, info: WorkerInfo) -> Graph:
        called.append(("init", info))
        return graph.map(lambda item: item * 10)

    def reset(graph: Graph, info: WorkerInfo, generator: SeedGenerator) -> Graph:
        called.append(("reset", info))
        seeds.append(generator.generate_seed())
        return graph.map(lambda item: item + info.worker_id)

    worker = rig(IterableWrapper(range(4)).sharding_filter(), init, reset)
    for number in range(2):
        sent = worker.run(epoch(shard(0), shard(2), num_shards=3, generation=number + 1, number=number))
        assert items_of(sent, 0) == [0, 30]
        assert items_of(sent, 2) == [22]
    zero, two = WorkerInfo(3, 0), WorkerInfo(3, 2)
    assert called == [("init", zero), ("reset", zero), ("init", two), ("reset", two), ("reset", zero), ("reset", two)]
    assert len(set(seeds)) == 4


def test_functions_may_draw_from_the_global_random_states(rig: MakeRig) -> None:
    """Those of the shard are in place, and this process's own are left alone."""
    drawn: list[float] = []

    def init(graph: Graph, info: WorkerInfo) -> Graph:
        drawn.append(random.random())
        return graph

    def reset(graph: Graph, info: WorkerInfo, generator: SeedGenerator) -> Graph:
        drawn.append(random.random())
        return graph

    random.seed(1)
    outside = random.random()
    random.seed(1)
    for _ in range(2):
        rig(IterableWrapper([1]), init, reset).run(epoch(shard()))
    assert random.random() == outside
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("which", ["worker_init_fn", "worker_reset_fn"])
def test_a_function_that_returns_nothing(rig: MakeRig, which: str) -> None:
    functions = {which: lambda graph, *_: None}
    worker = rig(IterableWrapper([1]), functions.get("worker_init_fn"), functions.get("worker_reset_fn"))
    error = only_error(worker.run(epoch(shard())))
    assert type(error) is TypeError
    assert f"{which} must return the datapipe" in str(error)
    assert "while shard 0 of 1 was being started" in "\n".join(error.__notes__)


def test_an_error_of_a_reset_function_is_of_that_shard_alone(rig: MakeRig) -> None:
    def reset(graph: Graph, info: WorkerInfo, generator: SeedGenerator) -> Graph:
        if info.worker_id == 0:
            raise OSError(5, "no such host")
        return graph

    sent = rig(IterableWrapper(range(4)).sharding_filter(), None, reset).run(
        epoch(shard(0), shard(1), num_shards=2),
    )
    assert items_of(sent, 1) == [1, 3]
    assert ended(sent) == [1]
    errors = [message for message, _ in sent if isinstance(message, ChunkMessage) and message.error is not None]
    assert [message.lane for message in errors] == [0]
    assert errors[0].error is not None
    assert repr(load_error(errors[0].error)) == "OSError(5, 'no such host')"
