"""A worker's loop, driven through an in-memory channel: no process, and nothing left to timing."""

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
from reading_services._runtime.channel import ChannelClosed, MemoryChannel, SocketChannel
from reading_services._runtime.dispatch_link import Listener
from reading_services._runtime.items import dump_items, load_items
from reading_services._runtime.messages import (
    ChunkMessage,
    Dealt,
    EndEpoch,
    Grant,
    Hello,
    Message,
    Notice,
    ShardStart,
    StartEpoch,
    Stop,
    Want,
)
from reading_services._runtime.remote_error import load_error
from reading_services._runtime.worker import Worker
from torchpipe import IterDataPipe, SnapshotPolicy, WorkerInfo, iterate
from torchpipe.dispatch import Dispatched
from torchpipe.errors import NotSerializableError, RemoteTraceback
from torchpipe.iter import IterableWrapper

SELDOM = partial(SnapshotPolicy, every=1000)


class Driver:
    """The main process's side: gives a worker messages and takes what it sends back."""

    def __init__(
        self,
        graph: Any,
        init_fn: Callable[..., Any] | None = None,
        reset_fn: Callable[..., Any] | None = None,
        policy: Callable[[], SnapshotPolicy] = SELDOM,
    ) -> None:
        self.main, worker_end = MemoryChannel.pair()
        self.board = Board()
        self.worker = Worker(1, worker_end, self.board, graph, init_fn, reset_fn, policy)

    def tell(self, *messages: Message) -> None:
        """Give the worker these, and let it work until it waits for more or stops."""
        for message in messages:
            self.main.send(message)
        try:
            self.worker.run()
        except ChannelClosed:  # it waits, for what nobody is going to send
            pass

    def hear(self) -> list[Any]:
        """What it has sent: items as (shard, items), and other messages as they are."""
        heard: list[Any] = []
        while (frame := self.main.receive(wait=False)) is not None:
            message, payload = frame
            if isinstance(message, ChunkMessage):
                items = load_items(payload)
                assert len(items) == message.count
                if items:
                    heard.append((message.shard, items))
                if message.error is not None:
                    heard.append((message.shard, load_error(message.error)))
                if message.ended:
                    heard.append((message.shard, "end"))
            else:
                heard.append(message)
        return heard

    def items(self) -> dict[int, list[Any]]:
        """What it has sent, by shard."""
        found: dict[int, list[Any]] = {}
        for shard, items in self.hear():
            found.setdefault(shard, []).extend(items if isinstance(items, list) else [items])
        return found


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def make(*args: Any, **options: Any) -> Driver:
        drivers.append(Driver(*args, **options))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.main.close()
        driver.board.close()


def epoch(*shards: int | ShardStart, credit: int = 4, generation: int = 1, seed: int = 0, **options: Any) -> StartEpoch:
    starts = [
        item if isinstance(item, ShardStart) else ShardStart(shard=item, snapshot=None, skip=0, count=0, credit=credit)
        for item in shards
    ]
    fields: dict[str, Any] = {
        "max_chunk": 100,
        "careful": False,
        "dispatch_address": None,
        "rank": 0,
        "world_size": 1,
    } | options
    return StartEpoch(
        generation=generation,
        seed=seed,
        epoch=0,
        num_shards=fields.pop("num_shards", 2),
        shards=tuple(starts),
        **fields,
    )


def numbers(length: int = 20) -> Any:
    return IterableWrapper(range(length)).sharding_filter()


def test_it_produces_what_was_granted_and_no_more(drive: Callable[..., Driver]) -> None:
    seen: list[int] = []
    worker = drive(numbers().map(lambda number: seen.append(number) or number))
    worker.tell(epoch(0, credit=3))
    assert worker.items() == {0: [0, 2, 4]}
    assert seen == [0, 2, 4]  # it did not run further ahead
    worker.tell()
    assert worker.items() == {}
    worker.tell(Grant(generation=1, shard=0, items=2))
    assert worker.items() == {0: [6, 8]}
    worker.tell(Grant(generation=1, shard=0, items=100))
    assert worker.items() == {0: [10, 12, 14, 16, 18, "end"]}


def test_without_credit_nothing_is_produced(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, credit=0))
    assert worker.hear() == []
    worker.tell(Grant(generation=1, shard=0, items=1))
    assert worker.items() == {0: [0]}


def test_shards_take_turns(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, 1, credit=4, max_chunk=1))
    heard = worker.hear()
    assert [shard for shard, _ in heard] == [0, 1] * 4
    worker.tell(Grant(generation=1, shard=1, items=2), Grant(generation=1, shard=0, items=1))
    assert sorted(shard for shard, _ in worker.hear()) == [0, 1, 1]


def test_a_chunk_is_no_larger_than_allowed(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, credit=5, max_chunk=2))
    assert all(len(items) <= 2 for _, items in worker.hear())
    careful = drive(numbers())
    careful.tell(epoch(0, credit=5, careful=True))
    assert [items for _, items in careful.hear()] == [[0], [2], [4], [6], [8]]


def test_an_epoch_that_is_ended_goes_no_further(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, credit=1), EndEpoch(generation=1))
    worker.hear()
    worker.tell(Grant(generation=1, shard=0, items=5))
    assert worker.hear() == []
    worker.tell(epoch(0, credit=2, generation=2))
    assert worker.items() == {0: [0, 2]}  # from its start


def test_messages_of_another_generation_or_shard_are_ignored(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, credit=1, generation=5))
    worker.hear()
    stale = [Grant(generation=4, shard=0, items=9), Grant(generation=6, shard=0, items=9)]
    worker.tell(*stale, Grant(generation=5, shard=1, items=9), EndEpoch(generation=4))
    assert worker.hear() == []
    worker.tell(Grant(generation=5, shard=0, items=1))
    assert worker.items() == {0: [2]}


def test_a_new_epoch_ends_the_one_before(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers())
    worker.tell(epoch(0, 1, credit=1), epoch(1, credit=2, generation=2))
    worker.hear()
    worker.tell(Grant(generation=2, shard=0, items=5))
    assert worker.hear() == []


def test_stop_ends_the_loop_and_closes_the_graph(drive: Callable[..., Driver]) -> None:
    closed: list[bool] = []

    class Source(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            try:
                yield from range(100)
            finally:
                closed.append(True)

    worker = drive(Source())
    worker.tell(epoch(0, credit=1, num_shards=1))
    worker.main.send(Stop())
    worker.worker.run()  # returns, and does not raise
    assert closed == [True]


def test_the_end_and_nothing_after_it(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers(3))
    worker.tell(epoch(0, 1, credit=50))
    assert worker.items() == {0: [0, 2, "end"], 1: [1, "end"]}
    worker.tell(Grant(generation=1, shard=0, items=3))
    assert worker.hear() == []


@pytest.mark.parametrize("batched", [False, True])
def test_it_goes_on_from_a_cursor(batched: bool, drive: Callable[..., Driver]) -> None:
    graph = numbers(40).shuffle(buffer_size=5).map(lambda number: (number, random.random(), float(np.random.randn())))
    worker = drive(graph, policy=partial(SnapshotPolicy, every=3))
    worker.tell(epoch(0, credit=100, num_shards=1, max_chunk=100 if batched else 1))
    whole: list[Any] = []
    cursors = []  # (snapshot, behind how many items)
    while (frame := worker.main.receive(wait=False)) is not None:
        message, payload = frame
        assert isinstance(message, ChunkMessage)
        whole += load_items(payload)
        if message.snapshot is not None:
            cursors.append((message.snapshot, len(whole)))
    assert len(whole) == 40
    assert [count for _, count in cursors] == list(range(3, 40, 3))
    for snapshot, count in [(None, 0), *cursors[:3]]:
        for skip in (0, 1, 2):
            again = drive(graph)
            start = ShardStart(shard=0, snapshot=snapshot, skip=skip, count=count + skip, credit=4)
            again.tell(epoch(start, num_shards=1))
            assert again.items() == {0: whole[count + skip : count + skip + 4]}


def fail_at_six(number: int) -> int:
    if number == 6:
        raise KeyError("six")
    return number


def test_an_error_arrives_behind_the_items_before_it_and_ends_only_its_shard(drive: Callable[..., Driver]) -> None:
    worker = drive(numbers().map(fail_at_six))
    worker.tell(epoch(0, 1, credit=50))
    items = worker.items()
    assert items[1] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, "end"]
    *before, error = items[0]
    assert before == [0, 2, 4]
    assert isinstance(error, KeyError)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "Mapper(fail_at_six) for item 3 of shard 0 of 2, epoch 0" in error.__notes__[0]
    assert "in worker 1 (pid" in error.__notes__[1]
    worker.tell(Grant(generation=1, shard=0, items=3))
    assert worker.hear() == []


def lock_at_six(number: int) -> Any:
    return threading.Lock() if number == 6 else number


@pytest.mark.parametrize("max_chunk", [1, 100])
def test_an_item_that_cannot_be_sent_is_an_error_in_its_place(max_chunk: int, drive: Callable[..., Driver]) -> None:
    worker = drive(numbers().map(lock_at_six), policy=partial(SnapshotPolicy, every=1))
    worker.tell(epoch(0, credit=50, max_chunk=max_chunk))
    *before, error = worker.items()[0]
    assert before == [0, 2, 4]
    assert isinstance(error, NotSerializableError)
    assert "type lock cannot be sent" in str(error)


def test_where_it_is_stands_on_the_board(drive: Callable[..., Driver]) -> None:
    seen: list[tuple[int, ...]] = []
    worker = drive(numbers().map(lambda number: seen.append(tuple(worker.board[slot] for slot in Slot)[1:]) or number))
    start = ShardStart(shard=1, snapshot=None, skip=0, count=7, credit=2)
    worker.tell(epoch(start))
    assert [place[:2] for place in seen] == [(1, 7), (1, 8)]
    assert {place[2] for place in seen} == {-1}  # tracing costs time: only when it is careful
    assert worker.board[Slot.SHARD] == -1  # idle again
    seen.clear()
    worker.tell(epoch(start, generation=2, careful=True))
    assert seen == [(1, 7, 2), (1, 8, 2)]  # the mapper's number in the graph


# --- init and reset functions ---


def test_init_runs_once_for_each_shard_and_reset_for_each_epoch(drive: Callable[..., Driver]) -> None:
    calls: list[Any] = []

    def init(graph: Any, info: WorkerInfo) -> Any:
        calls.append(("init", info.worker_id, info.num_workers))
        return graph.map(lambda number: number + 100 * info.worker_id)

    def reset(graph: Any, info: WorkerInfo, seeds: Any) -> Any:
        calls.append(("reset", info.worker_id, seeds.generate_seed()))
        return graph.enumerate()

    worker = drive(numbers(), init, reset)
    for generation in (1, 2):
        worker.tell(epoch(0, 1, credit=1, generation=generation))
        assert worker.items() == {0: [(0, 0)], 1: [(0, 101)]}
    worker.tell(epoch(1, credit=1, generation=3, num_shards=3))
    worker.hear()
    kinds = [call[:2] for call in calls]
    assert kinds == [
        ("init", 0),
        ("reset", 0),
        ("init", 1),
        ("reset", 1),
        ("reset", 0),
        ("reset", 1),
        ("init", 1),  # shard 1 of 3 is another than shard 1 of 2
        ("reset", 1),
    ]
    seeds = [call[2] for call in calls if call[0] == "reset"]
    assert seeds[0] == seeds[2]  # the same epoch
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize("name", ["init", "reset"])
def test_a_function_that_returns_nothing_is_an_error_of_its_shard(name: str, drive: Callable[..., Driver]) -> None:
    def forgets(graph: Any, info: WorkerInfo, *_: Any) -> Any:
        return graph if info.worker_id == 1 else None

    worker = drive(numbers(), **{f"{name}_fn": forgets})
    worker.tell(epoch(0, 1, credit=2))
    items = worker.items()
    (error,) = items[0]
    assert isinstance(error, TypeError)
    assert f"worker_{name}_fn must return the datapipe" in str(error)
    assert "got None: is a return missing?" in str(error)
    assert "while shard 0 of 2 was being started" in error.__notes__[0]
    assert items[1] == [1, 3]


def test_warnings_of_a_start_are_passed_on(drive: Callable[..., Driver]) -> None:
    def warn(graph: Any, info: WorkerInfo, seeds: Any) -> Any:
        warnings.warn("careful now", DeprecationWarning, stacklevel=1)
        return graph

    worker = drive(numbers(), None, warn)
    worker.tell(epoch(0, credit=1))
    assert Notice(category="DeprecationWarning", text="careful now") in worker.hear()


# --- global random states ---


def draw(number: int) -> tuple[float, float, float]:
    return random.random(), float(np.random.randn()), float(torch.randn(()))


def test_shards_in_one_worker_have_random_states_of_their_own(drive: Callable[..., Driver]) -> None:
    together, alone = drive(numbers().map(draw)), drive(numbers().map(draw))
    together.tell(epoch(0, 1, credit=5, max_chunk=2))
    alone.tell(epoch(1, credit=5))
    both = together.items()
    assert both[1] == alone.items()[1]
    assert both[0] != both[1]


def test_it_gives_what_in_process_execution_gives(drive: Callable[..., Driver]) -> None:
    graph = numbers().shuffle(buffer_size=4).random_map(lambda number, generator: (number, float(generator.random())))
    worker = drive(graph)
    worker.tell(epoch(1, credit=100, seed=3))
    assert worker.items()[1][:-1] == list(iterate(graph, seed=3, shard=1, num_shards=2))


# --- with a dispatcher ---


def test_a_grant_that_comes_while_a_restarted_shard_drops_items_is_taken(drive: Callable[..., Driver]) -> None:
    """The window was full at the restart, so there is no credit but that grant: unread, it would be a hang."""
    listener = Listener()
    worker = drive(Dispatched())
    start = ShardStart(shard=0, snapshot=None, skip=1, count=1, credit=0)

    def deal() -> None:
        """Once the worker waits for what it has to drop, and after the grant was sent."""
        sock, _ = listener.socket.accept()
        link = SocketChannel(sock, queued=False)
        assert isinstance(wait_for_frame(link), Hello)
        assert wait_for_frame(link) == Want(generation=1, shard=0, items=4)
        link.send(Dealt(shard=0, over=False, error=None), dump_items([("dropped",), ("first",), ("second",)]))
        assert dealt.wait(20)
        link.close()

    dealt = threading.Event()
    dealer = threading.Thread(target=deal)
    dealer.start()
    worker.tell(
        epoch(start, num_shards=1, max_chunk=2, dispatch_address=listener.address),
        Grant(generation=1, shard=0, items=2),
    )
    dealt.set()
    dealer.join()
    assert worker.items() == {0: ["first", "second"]}
    listener.close()
    worker.worker._end_epoch()


def wait_for_frame(link: SocketChannel) -> Message:
    frame = link.receive(wait=True)
    assert frame is not None
    return frame[0]
