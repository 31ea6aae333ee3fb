"""The worker's loop without a process: all that main says lies ready in a MemoryChannel, and what is sent is read."""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from reading_services._runtime.board import Board, Slot
from reading_services._runtime.channel import ChannelClosed, MemoryChannel
from reading_services._runtime.items import load_items
from reading_services._runtime.messages import (
    ChunkMessage,
    EndEpoch,
    Grant,
    Message,
    Notice,
    Ready,
    ShardStart,
    StartEpoch,
    Stop,
)
from reading_services._runtime.remote_error import load_error
from reading_services._runtime.worker import Worker
from torchpipe import IterDataPipe, NodeIterator, SnapshotPolicy
from torchpipe.context import Context
from torchpipe.errors import NotSerializableError, StateError
from torchpipe.iter import IterableWrapper
from torchpipe.nodes import DataPipe, walk
from torchpipe.seeds import SeedGenerator
from torchpipe.worker_info import WorkerInfo

Graph = IterDataPipe[Any]


def epoch(
    *shards: ShardStart,
    generation: int = 1,
    number: int = 0,
    num_shards: int = 1,
    max_chunk: int = 100,
    careful: bool = False,
) -> StartEpoch:
    return StartEpoch(
        generation=generation,
        seed=5,
        epoch=number,
        num_shards=num_shards,
        rank=0,
        world_size=1,
        shards=shards,
        max_chunk=max_chunk,
        dispatch_address=None,
        dispatch_branch=-1,
        careful=careful,
    )


def shard(number: int = 0, *, credit: int = 1000, skip: int = 0, snapshot: bytes | None = None) -> ShardStart:
    return ShardStart(lane=number, branch=0, shard=number, snapshot=snapshot, skip=skip, count=skip, credit=credit)


def grant(items: int, number: int = 0, generation: int = 1) -> Grant:
    return Grant(generation=generation, lane=number, items=items)


class Rig:
    """A worker with main's end of its connection. ``run`` hands it messages and lets it work until it has to wait."""

    def __init__(self, graph: DataPipe, init_fn: Any = None, reset_fn: Any = None, *, every: int = 1000) -> None:
        self.main, theirs = MemoryChannel.pair()
        self.board = Board()
        self.stopped = False
        policy = partial(SnapshotPolicy, every=every)
        self._worker = Worker(3, theirs, self.board, (graph,), init_fn, reset_fn, policy)

    def run(self, *messages: Message) -> list[tuple[Message, list[Any]]]:
        """What is sent: (message, the items that it carries)."""
        for message in messages:
            self.main.send(message)
        try:
            self._worker.run()
            self.stopped = True
        except ChannelClosed:  # it waits, with an empty inbox
            pass
        sent = []
        while (frame := self.main.receive(wait=False)) is not None:
            sent.append((frame[0], load_items(frame[1]) if frame[1] else []))
        return sent


MakeRig = Callable[..., Rig]


@pytest.fixture
def rig() -> Iterator[MakeRig]:
    rigs: list[Rig] = []

    def make(*arguments: Any, **options: Any) -> Rig:
        rigs.append(Rig(*arguments, **options))
        return rigs[-1]

    yield make
    for made in rigs:
        made.run(Stop())
        assert made.stopped
        made.board.close()


def chunks(sent: list[tuple[Message, list[Any]]]) -> list[tuple[int, list[Any]]]:
    """(shard, items) of each chunk; each says how many items it carries."""
    found = []
    for message, items in sent:
        if isinstance(message, ChunkMessage):
            assert message.count == len(items)
            found.append((message.lane, items))
    return found


def items_of(sent: list[tuple[Message, list[Any]]], number: int = 0) -> list[Any]:
    return [item for shard, items in chunks(sent) if shard == number for item in items]


def only_error(sent: list[tuple[Message, list[Any]]]) -> BaseException:
    errors = [message.error for message, _ in sent if isinstance(message, ChunkMessage) and message.error is not None]
    assert len(errors) == 1
    last = [message for message, _ in sent if isinstance(message, ChunkMessage)][-1]
    assert last.error is errors[0]  # nothing comes behind an error
    assert not last.ended
    return load_error(errors[0])


def ended(sent: list[tuple[Message, list[Any]]]) -> list[int]:
    return [message.lane for message, _ in sent if isinstance(message, ChunkMessage) and message.ended]


# -- credits ----------------------------------------------------------------------------------


def test_no_more_is_produced_than_was_granted(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)))
    assert items_of(worker.run(epoch(shard(credit=3)))) == [0, 1, 2]
    assert worker.run() == []
    assert items_of(worker.run(grant(1))) == [3]
    assert items_of(worker.run(grant(2), grant(3))) == [4, 5, 6, 7, 8]
    assert worker.run(grant(0)) == []


def test_without_credit_nothing_is_produced(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)))
    assert worker.run(epoch(shard(credit=0))) == []
    assert items_of(worker.run(grant(1))) == [0]


def test_the_end_needs_credit_and_is_said_once(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(3)))
    sent = worker.run(epoch(shard(credit=3)))
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


def test_chunks_are_no_larger_than_wanted(rig: MakeRig) -> None:
    sent = rig(IterableWrapper(range(20))).run(epoch(shard(credit=20), max_chunk=3))
    assert items_of(sent) == list(range(20))
    assert max(len(items) for _, items in chunks(sent)) <= 3


def test_a_worker_without_shards_waits(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(3)))
    assert worker.run(epoch()) == []
    assert items_of(worker.run(epoch(shard(), generation=2))) == [0, 1, 2]


def test_every_item_of_the_epoch_comes_whatever_the_credits(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(50)).shuffle(buffer_size=7).sharding_filter())
    whole = items_of(worker.run(epoch(shard(1, credit=1000), num_shards=2)), 1)
    assert len(whole) == 25
    sent = worker.run(epoch(shard(1, credit=0), num_shards=2, generation=2))
    rng = random.Random(2)
    while not ended(sent):
        sent += worker.run(grant(rng.randint(1, 4), 1, generation=2))
    assert items_of(sent, 1) == whole


# -- several shards ---------------------------------------------------------------------------


def test_shards_take_turns(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(30)).sharding_filter())
    sent = worker.run(epoch(shard(0), shard(1), shard(2), num_shards=3, max_chunk=1))
    order = [number for number, items in chunks(sent) if items]
    assert order == [0, 1, 2] * 10
    for number in range(3):
        assert items_of(sent, number) == list(range(number, 30, 3))
    assert ended(sent) == [0, 1, 2]


def test_a_shard_without_credit_holds_up_no_other(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(30)).sharding_filter())
    sent = worker.run(epoch(shard(0, credit=0), shard(1), num_shards=2))
    assert items_of(sent, 0) == []
    assert ended(sent) == [1]
    assert items_of(worker.run(grant(2, 0)), 0) == [0, 2]


def test_an_error_of_one_shard_leaves_the_others_alone(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)).sharding_filter().map(fail_at(7)))
    sent = worker.run(epoch(shard(0), shard(1), num_shards=2))
    assert items_of(sent, 0) == list(range(0, 20, 2))
    assert items_of(sent, 1) == [1, 3, 5]
    assert ended(sent) == [0]


# -- epochs -----------------------------------------------------------------------------------


def test_nothing_is_produced_after_the_end_of_an_epoch(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)))
    worker.run(epoch(shard(credit=1)))
    assert worker.run(EndEpoch(generation=1), grant(5)) == []
    assert worker.run(grant(5), EndEpoch(generation=1)) == []


def test_what_belongs_to_another_generation_is_ignored(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(20)))
    worker.run(epoch(shard(credit=1), generation=4))
    stale = (grant(5, generation=3), EndEpoch(generation=3), grant(5, generation=5), grant(5, 1, generation=4))
    assert worker.run(*stale) == []
    sent = worker.run(grant(1, generation=4))
    assert items_of(sent) == [1]
    assert [message.generation for message, _ in sent if isinstance(message, ChunkMessage)] == [4]


def test_a_new_epoch_replaces_the_one_before(rig: MakeRig) -> None:
    worker = rig(IterableWrapper(range(10)).shuffle())
    first = items_of(worker.run(epoch(shard(credit=3))))
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
        ((epoch(shard(credit=1)), EndEpoch(generation=1)), 1),
        ((epoch(shard(credit=1), generation=2), epoch(shard(credit=1), generation=3)), 2),
        ((epoch(shard(), generation=4),), 4),
    ):
        worker.run(*messages)
        assert len(closed) == count
    worker.run(epoch(shard(credit=1), generation=5))
    worker.run(Stop())
    assert len(closed) == 5


class TellsItsEnd(IterDataPipe[int]):
    def __init__(self, closed: list[int]) -> None:
        self.closed = closed

    def iterate(self, context: Context) -> NodeIterator[int]:
        return _TellsItsEnd(self, context)


class _TellsItsEnd(NodeIterator[int]):
    node: TellsItsEnd

    def run(self) -> Iterator[int]:
        yield from range(3)

    def close(self) -> None:
        if not self._closed:
            self.node.closed.append(1)
        super().close()


def test_a_message_that_is_none_of_a_workers() -> None:
    worker = Rig(IterableWrapper([1]))
    with pytest.raises(TypeError, match="cannot handle Ready"):
        worker.run(Ready(pid=1))
    worker.board.close()


# -- positions --------------------------------------------------------------------------------


def test_snapshots_and_skips_lead_to_the_same_place(rig: MakeRig) -> None:
    graph = IterableWrapper(range(40)).shuffle(buffer_size=5).sharding_filter().map(draw)
    worker = rig(graph, every=4)
    sent = worker.run(epoch(shard(), max_chunk=3))
    whole = items_of(sent)
    assert ended(sent) == [0]
    behind, generation = 0, 1
    positions = [(None, 0)]
    for message, _ in sent:
        assert isinstance(message, ChunkMessage)
        behind += message.count
        if message.snapshot is not None:
            assert behind % 4 == 0
            positions.append((message.snapshot, behind))
    assert len(positions) == 11
    for snapshot, taken_at in positions:
        for skip in (0, 3):
            if taken_at + skip <= len(whole):
                generation += 1
                start = ShardStart(
                    lane=0, branch=0, shard=0, snapshot=snapshot, skip=skip, count=taken_at + skip, credit=1000
                )
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


# -- errors -----------------------------------------------------------------------------------


def fail_at(number: int) -> Callable[[Any], Any]:
    def step(item: Any) -> Any:
        if item == number:
            raise ValueError(f"broken at {number}")
        return item

    return step


def test_an_error_comes_behind_the_items_before_it(rig: MakeRig) -> None:
    sent = rig(IterableWrapper(range(9)).map(fail_at(4))).run(epoch(shard()))
    assert items_of(sent) == [0, 1, 2, 3]
    error = only_error(sent)
    assert repr(error) == "ValueError('broken at 4')"
    notes = "\n".join(error.__notes__)
    assert "for item 4 of shard 0 of 1, epoch 0" in notes
    assert "in worker 3 (pid" in notes


@pytest.mark.parametrize("max_chunk", [1, 2, 100])
def test_an_item_that_cannot_be_sent_is_an_error_in_its_place(rig: MakeRig, max_chunk: int) -> None:
    class Stubborn:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    graph = IterableWrapper(range(9)).map(lambda item: Stubborn() if item in (3, 5) else item)
    sent = rig(graph, every=2).run(epoch(shard(), max_chunk=max_chunk))
    assert items_of(sent) == [0, 1, 2]
    error = only_error(sent)
    assert isinstance(error, NotSerializableError)
    assert "an item of type" in str(error)
    assert "Stubborn cannot be sent" in str(error)
    assert "lock" in str(error)
    last = sent[-1][0]
    assert isinstance(last, ChunkMessage)
    assert last.snapshot is None  # one would be behind items that are not there


def test_an_item_that_cannot_be_sent_comes_before_an_error_behind_it(rig: MakeRig) -> None:
    graph = IterableWrapper(range(9)).map(fail_at(4)).map(lambda item: threading.Lock() if item == 2 else item)
    sent = rig(graph).run(epoch(shard()))
    assert items_of(sent) == [0, 1]
    assert isinstance(only_error(sent), NotSerializableError)


def test_items_that_cannot_go_together_are_an_error(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reading_services._runtime.worker._CHUNK_S", 60.0)  # so that they do come together
    OnlyAlone.count = 0
    sent = rig(IterableWrapper(range(4)).map(OnlyAlone)).run(epoch(shard(), max_chunk=2))
    assert items_of(sent) == []
    assert "not with another" in str(only_error(sent))


class OnlyAlone:
    """Can be pickled by itself, but no two of them at a time."""

    count = 0

    def __init__(self, item: int) -> None:
        self.item = item

    def __reduce__(self) -> Any:
        OnlyAlone.count += 1
        if OnlyAlone.count % 4 in (2, 0):
            raise ValueError("not with another")
        return OnlyAlone, (self.item,)


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


# -- what is noted for a post-mortem ----------------------------------------------------------


def test_the_board_says_which_item_is_being_made(rig: MakeRig) -> None:
    noted: list[tuple[int, int, int]] = []
    worker: Rig

    def look(item: int) -> int:
        noted.append((worker.board[Slot.LANE], worker.board[Slot.INDEX], worker.board[Slot.NODE]))
        return item

    worker = rig(IterableWrapper(range(5)).sharding_filter().map(look))
    worker.run(epoch(shard(1), num_shards=2))
    assert noted == [(1, 0, -1), (1, 1, -1)]
    assert worker.board[Slot.LANE] == -1  # waiting
    noted.clear()
    worker.run(epoch(shard(1, skip=1), num_shards=2, generation=2))
    assert noted == [(1, 1, -1), (1, 1, -1)]  # the first of them while going to its position


def test_careful_sends_one_by_one_and_notes_the_node(rig: MakeRig) -> None:
    noted: list[int] = []
    worker: Rig

    def look(item: int) -> int:
        noted.append(worker.board[Slot.NODE])
        return item

    graph = IterableWrapper(range(4)).map(look).batch(2).map(lambda batch: look(len(batch)))
    worker = rig(graph)
    sent = worker.run(epoch(shard(), careful=True))
    assert [items for _, items in chunks(sent)] == [[2], [2], []]
    numbers = Context.for_graph(graph, seed=0).numbers
    names = {numbers[id(node)]: type(node).__name__ for node in walk(graph)}
    assert [names[number] for number in noted] == ["Mapper", "Mapper", "Mapper"] * 2
    inner, outer = noted[0], noted[2]
    assert inner != outer
    assert noted == [inner, inner, outer] * 2
    assert worker.board[Slot.NODE] == -1


# -- warnings ---------------------------------------------------------------------------------


class Plain(IterDataPipe[int]):
    """Without state: resumed by replay, which is announced."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)


def notices(sent: list[tuple[Message, list[Any]]]) -> list[tuple[str, str]]:
    return [(message.category, message.text) for message, _ in sent if isinstance(message, Notice)]


def test_warnings_while_starting_become_notices(rig: MakeRig) -> None:
    def reset(graph: Graph, info: WorkerInfo, generator: SeedGenerator) -> Graph:
        warnings.warn("of the user's own", DeprecationWarning, stacklevel=1)
        return graph

    worker = rig(Plain(), None, reset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sent = worker.run(epoch(shard(skip=4)))
    assert items_of(sent) == [4, 5, 6, 7, 8, 9]
    assert notices(sent)[0] == ("DeprecationWarning", "of the user's own")
    assert notices(sent)[1][0] == "ReplayWarning"
    assert "replaying 4 items of shard 0" in notices(sent)[1][1]
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
    assert "no snapshot can be taken of shard 0 behind item 2: not just now" in text
    assert all(message.snapshot is None for message, _ in sent if isinstance(message, ChunkMessage))
