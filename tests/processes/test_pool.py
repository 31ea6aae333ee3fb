"""All processes of a loader together: what happens to them is told in order, and all of them end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from reading_services.engine.messages import ShardStart, StartEpoch
from reading_services.engine.workers import ChunkArrived, Event, Gone, Ready, Section
from reading_services.processes import pool as module
from reading_services.processes import process
from reading_services.processes.graph_image import GraphImage
from reading_services.processes.pool import ProcessPool
from reading_services.processes.process import ProcessWorker
from tests import leaks
from tests.laws.interrupts import Interrupt, Interrupter
from tests.processes.rig import close_and_sleep, leave, sleep, sleep_deaf, wait_busy
from torchpipe.iter import IterableWrapper
from torchpipe.state import Cursor, SnapshotPolicy


def pool_of(image: GraphImage | None = None, context: Any = None, **options: Any) -> ProcessPool:
    context = context or multiprocessing.get_context("fork")
    return ProcessPool(context, Section(image or GraphImage(b""), {}), **options)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    """Let processes run this, and not a worker's loop."""
    return lambda target: monkeypatch.setattr(module, "run_worker", target)


def opened(pool: ProcessPool, number: int = 0) -> ProcessWorker:
    worker = pool.open(number)
    assert isinstance(worker, ProcessWorker)
    wait_busy(worker)
    return worker


def wait_for(pool: ProcessPool, kind: type[Event]) -> list[Any]:
    """What has happened, up to the first of this kind."""
    seen: list[Any] = []
    while not any(isinstance(event, kind) for event in seen):
        seen += pool.wait(60)
    return seen


def test_what_it_had_sent_is_told_before_its_end() -> None:
    image = GraphImage.of((IterableWrapper(range(100)),), None, None, SnapshotPolicy)
    pool = pool_of(image)
    worker = pool.open(0)
    assert [type(event) for event in wait_for(pool, Ready)] == [Ready]
    start = ShardStart(lane=4, branch=0, shard=0, cursor=Cursor(), held=0, isolate_before=0)
    worker.begin(
        StartEpoch(
            generation=1,
            seed=5,
            epoch=0,
            num_shards=1,
            rank=0,
            world_size=1,
            shards=(start,),
            window=1000,
            window_bytes=1 << 30,
            dispatch_branch=-1,
            isolate_items=False,
        )
    )
    assert isinstance(worker, ProcessWorker)
    ended = False
    items: list[int] = []
    while not ended:
        for event in pool.wait(60):
            assert isinstance(event, ChunkArrived)
            assert (event.worker, event.generation, event.lane) == (worker, 1, 4)
            items += event.arrival.open(0).items
            ended = event.arrival.ended
    assert items == list(range(100))
    worker.signal(signal.SIGKILL)
    *before, gone = wait_for(pool, Gone)
    assert before == []
    assert gone.end.cause == "was killed by SIGKILL (signal 9)"
    assert pool.pending(worker) == []
    pool.drop(worker)
    assert pool.pids() == []
    pool.close()


def test_one_that_is_let_go_of_ends_by_itself_and_is_heard_of_no_more() -> None:
    pool = pool_of(GraphImage.of((IterableWrapper(range(9)),), None, None, SnapshotPolicy))
    first = pool.open(0)
    wait_for(pool, Ready)
    pool.drop(first)
    second = pool.open(0)
    assert [event.worker for event in wait_for(pool, Ready)] == [second]
    pool.drop(second)
    pool.close()


def test_a_wake_up_ends_a_wait_and_goes_nowhere_after_the_close() -> None:
    """The wake-up's descriptor may be another file by then."""
    pool = pool_of()
    pool.wake()
    assert pool.wait(1000) == []
    pool.close()
    ends = [os.pipe() for _ in range(8)]  # some of these have the numbers of the closed ones
    pool.wake()
    for read, write in ends:
        os.set_blocking(read, False)
        with pytest.raises(BlockingIOError):
            os.read(read, 1)
        os.close(read)
        os.close(write)
    pool.close()  # idempotent


def test_L7_one_that_never_gets_ready_is_killed(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is forked while another thread holds a lock may wait for it for ever."""
    monkeypatch.setattr(process, "_STARTUP_S", 0.5)
    running(sleep)
    pool = pool_of()
    worker = opened(pool)
    (gone,) = wait_for(pool, Gone)
    assert gone.end.own
    assert gone.end.cause == "was killed by SIGKILL (signal 9)"
    pool.drop(worker)
    pool.close()


@pytest.mark.nightly
def test_L6_an_interrupt_at_any_instruction_while_processes_end(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every single one: between two of them, processes were forgotten. What still lives is left to the next call."""
    monkeypatch.setattr(process, "_GRACE_S", 0.02)
    running(sleep_deaf)
    number, beyond = 0, False
    while not beyond:
        number += 1
        pool = pool_of()
        worker = opened(pool)
        interrupter = Interrupter(number, ("reading_services",))
        try:
            with interrupter:
                pool.close()
            assert interrupter.hit is None
            beyond = True
        except Interrupt:
            pool.close()
        assert not worker.is_alive(), interrupter.hit
        assert list(pool) == [], interrupter.hit
    assert number > 50


def test_L6_forgotten_ones_end(running: Any) -> None:
    """Without a collection, also if somebody still holds one of them."""
    running(sleep)
    pool = pool_of()
    worker = opened(pool)
    del pool
    assert not worker.is_alive()


def leave_a_stopped_worker() -> None:
    module.run_worker = sleep
    pool = pool_of()
    os.kill(opened(pool).pid, signal.SIGSTOP)
    multiprocessing.current_process().pool = pool  # type: ignore[attr-defined]  # it lives until the end


def test_a_process_of_multiprocessing_ends_also_with_a_stopped_worker() -> None:
    """As ranks do that a launcher has started: at their end multiprocessing waits for their children."""
    rank = multiprocessing.get_context("fork").Process(target=leave_a_stopped_worker)
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    rank.close()


def test_a_process_is_not_listed_before_it_has_been_started(running: Any) -> None:
    """Its number would be 0: a kill of that is one of the own process group."""
    running(sleep)
    seen = []

    class Looked(multiprocessing.context.ForkProcess):
        def start(self) -> None:
            seen.append(pool.pids())
            super().start()
            seen.append(pool.pids())

    context = SimpleNamespace(Process=Looked, get_start_method=lambda: "fork")
    pool = pool_of(context=context)
    first = opened(pool, 1)
    assert seen == [[]] * 2
    second = opened(pool, 0)
    assert seen[2:] == [[first.pid]] * 2
    assert pool.pids() == [second.pid, first.pid]
    pool.close()


def test_processes_can_be_asked_for_while_they_are_being_replaced(running: Any) -> None:
    running(partial(leave, code=0))
    pool, over, errors = pool_of(), threading.Event(), []

    def ask() -> None:
        try:
            while not over.is_set():
                pool.pids()
                pool.processes()
        except Exception as error:
            errors.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(20):
            opened_now = [pool.open(number) for number in range(3)]
            gone: set[Any] = set()
            while len(gone) < 3:
                gone |= {event.worker for event in pool.wait(60) if isinstance(event, Gone)}
            for worker in opened_now:
                pool.drop(worker)
    finally:
        over.set()
        asker.join()
        pool.close()
    assert errors == []


def test_L6_one_that_takes_its_time_to_die_is_waited_for(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it took longer than it was waited for, and stayed behind as a zombie, with its pipes."""
    monkeypatch.setattr(process, "_REAP_S", 0.0)  # what is too short for it is a matter of the machine
    running(close_and_sleep)
    before = leaks.Footprint.take()
    pool = pool_of()
    for number in range(8):
        worker = opened(pool, number)
        (gone,) = wait_for(pool, Gone)
        assert gone.worker is worker
        pool.drop(worker)
    del worker, gone
    pool.close()
    assert leaks.wait_nothing_left(before) == []
