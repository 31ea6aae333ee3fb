"""One worker process from start to end: the stop ladder, signals, what a failed start leaves, causes of death."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from reading_services._supervision import fork_server, main_module, process, worker_pool
from reading_services._supervision.process import WorkerProcess, _ctrl_c_held
from reading_services._supervision.stop_ladder import stop_all
from reading_services._supervision.worker_pool import WorkerPool
from reading_services._transport.arena import Arena
from reading_services._transport.channel import ChannelClosed
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.status_page import Field, StatusPage
from reading_services._workers.worker import serve
from tests import leaks
from tests.laws.executors import PROCESSES
from tests.laws.interrupts import Interrupt, Interrupter
from tests.sources import wait_until

BUSY = 1  # what a worker notes on its page once it does what the test is about


def started(target: Callable[..., None], *extra: Any, method: str = "fork", number: int = 0) -> WorkerProcess:
    worker = made(target, *extra, method=method, number=number)
    worker.start(())
    return worker


def made(target: Callable[..., None], *extra: Any, method: str = "fork", number: int = 0) -> WorkerProcess:
    context = multiprocessing.get_context(method)
    return WorkerProcess(number, context, GraphImage(b""), {}, name=f"worker {number}", target=target, extra=extra)


def wait_busy(worker: WorkerProcess) -> None:
    wait_until(lambda: worker.page[Field.LANE] == BUSY)


def sleep(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    page[Field.LANE] = BUSY
    time.sleep(1000)


def sleep_deaf(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(setup, sock, page, arena)


def wait_for_main(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    os.close(setup.inherited_fds[-1])  # a forked child's copy of the main process's end
    page[Field.LANE] = BUSY
    while sock.recv(100):
        pass


def leave(setup: Any, sock: Any, page: StatusPage, arena: Arena, code: int) -> None:
    os._exit(code)


def kill_itself(setup: Any, sock: Any, page: StatusPage, arena: Arena, number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)


# --- the stop ladder ---


def rungs_of(workers: list[WorkerProcess], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Is going to hold what was done to them, in order."""
    rungs: list[str] = []
    for worker in workers:
        for rung in ("terminate", "kill"):
            real = getattr(worker.process, rung)
            monkeypatch.setattr(worker.process, rung, lambda rung=rung, real=real: (rungs.append(rung), real())[1])
    return rungs


def test_a_worker_that_listens_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(wait_for_main)
    wait_busy(worker)
    rungs = rungs_of([worker], monkeypatch)
    stop_all([worker], grace_s=1000)
    assert rungs == []
    assert not worker.is_alive()


def test_workers_that_do_not_listen_are_terminated_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them at once: the ladder takes no longer for many than for one."""
    workers = [started(sleep_deaf), started(sleep_deaf), started(sleep)]
    for worker in workers:
        wait_busy(worker)
    rungs = rungs_of(workers, monkeypatch)
    pids = [worker.pid for worker in workers]
    stop_all(workers, grace_s=0.5)
    assert rungs[:3] == ["terminate"] * 3
    assert set(rungs[3:]) == {"kill"}
    assert not any(worker.is_alive() for worker in workers)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_stopped_worker_is_killed() -> None:
    worker = started(sleep)
    wait_busy(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    stop_all([worker], grace_s=0.1)
    assert not worker.is_alive()


def tell_and_sleep_deaf(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    """Once the main process has asked it to end, interrupt that one, and do not listen."""
    os.close(setup.inherited_fds[-1])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    page[Field.LANE] = BUSY
    while sock.recv(100):
        pass
    os.kill(setup.parent_pid, signal.SIGINT)
    time.sleep(1000)


def test_an_interrupt_of_the_ladder_takes_it_to_its_last_rung() -> None:
    """Else the processes would live for as long as the main one, which would wait for them at its exit for ever."""
    pool = WorkerPool(threading.RLock())
    worker = made(tell_and_sleep_deaf)
    pool.start(worker)
    wait_busy(worker)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert not worker.is_alive()
    assert not os.path.exists(f"/proc/{worker.pid}")
    pool.close()


def test_a_worker_that_was_never_started_can_be_stopped() -> None:
    worker = made(sleep)
    stop_all([worker])
    worker.release()


def test_one_that_survives_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = started(sleep)
    wait_busy(worker)
    child = worker.process
    monkeypatch.setattr(child, "terminate", lambda: None)  # as if it hung inside the kernel
    monkeypatch.setattr(child, "kill", lambda: None)
    with caplog.at_level(logging.ERROR, "torchpipe"):
        stop_all([worker], grace_s=0.05)
    assert f"worker 0 (pid {worker.pid}) survived SIGKILL" in caplog.text
    os.kill(worker.pid, signal.SIGKILL)
    child.join()
    worker.release()


# --- ends ---


@pytest.mark.parametrize(
    ("target", "argument", "cause", "own"),
    [
        (leave, 0, "exited with code 0", True),
        (leave, 3, "exited with code 3", True),
        (kill_itself, signal.SIGKILL, "was killed by SIGKILL (signal 9)", False),
        (kill_itself, signal.SIGTERM, "was killed by SIGTERM (signal 15)", False),
        (kill_itself, signal.SIGSEGV, "was killed by SIGSEGV (signal 11)", True),
        (kill_itself, signal.SIGRTMIN + 2, f"was killed by signal {signal.SIGRTMIN + 2}", False),
    ],
)
def test_how_it_ended(target: Callable[..., None], argument: int, cause: str, own: bool) -> None:
    worker = started(target, argument)
    worker.process.join()
    worker.page.approach(5, 17)
    dead = worker.examine(dispatcher=False, num_shards=3)
    assert (dead.cause, dead.own, dead.lane, dead.shard, dead.begun_s) == (cause, own, 5, 2, None)
    assert "no item (on its way to item 17 of shard 2" in str(dead)
    worker.page.begin(5, 17, 2)
    dead = worker.examine(dispatcher=False, num_shards=3)
    assert dead.begun_s is not None
    assert dead.begun_s > 0
    assert "making one of items 17 to 18 of shard 2" in str(dead)
    worker.release()
    worker.release()  # idempotent
    assert not worker.is_alive()
    with pytest.raises(ChannelClosed):
        worker.channel.receive(wait=False)


def test_a_start_that_fails_leaves_nothing() -> None:
    worker = made(sleep, threading.Lock(), method="spawn")
    with pytest.raises(TypeError, match="cannot pickle"):
        worker.start(())
    assert not worker.is_alive()
    stop_all([worker])


def test_one_that_somebody_else_has_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """The program's own os.waitpid(-1), say. It has not survived, and nobody knows how it ended."""
    dead, ended = started(sleep), started(sleep, number=1)
    for worker in (dead, ended):
        wait_busy(worker)
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
    found = dead.examine(dispatcher=False, num_shards=3)
    assert (found.own, found.exitcode) == (False, 255)
    assert "has ended (how, only whoever waited for it knows" in found.cause
    stop_all([dead, ended], grace_s=1000)
    assert not caplog.records
    assert not {"torchpipe-worker-0", "torchpipe-worker-1"} & {
        child.name for child in multiprocessing.active_children()
    }


def test_one_that_another_thread_has_waited_for_is_told_as_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing waits for all children wherever it starts one. It notes how they ended a moment later."""
    monkeypatch.setattr(process, "_TOLD_S", 60.0)  # that moment may be a long one here
    dead = started(sleep)
    wait_busy(dead)
    os.kill(dead.pid, signal.SIGKILL)
    popen = dead.process._popen
    status = os.waitpid(dead.pid, 0)[1]
    note = threading.Timer(0.05, lambda: setattr(popen, "returncode", os.waitstatus_to_exitcode(status)))
    note.start()
    found = dead.examine(dispatcher=False, num_shards=3)
    note.join()
    assert (found.exitcode, found.cause) == (-signal.SIGKILL, "was killed by SIGKILL (signal 9)")
    stop_all([dead])


def test_one_that_another_thread_has_waited_for_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing would keep it, and its pipes, until the next process is started."""
    monkeypatch.setattr(process, "_TOLD_S", 60.0)
    dead = started(leave, 0)
    status = os.waitpid(dead.pid, 0)[1]
    note = threading.Timer(0.05, setattr, (dead.process._popen, "returncode", os.waitstatus_to_exitcode(status)))
    note.start()
    dead.release()
    note.join()
    assert dead.process is None
    assert "torchpipe-worker-0" not in {child.name for child in multiprocessing.process._children}


def test_to_ask_whether_a_process_of_the_forkserver_runs_does_not_take_what_is_told_once() -> None:
    """How it ended: of two threads that both took it, the second was told 255, and that might be the supervisor's."""
    worker = started(leave, 3, method="forkserver")
    wait_until(lambda: not worker.is_alive())
    assert worker.process._popen.returncode is None
    found = worker.examine(dispatcher=False, num_shards=3)
    assert (found.exitcode, found.own) == (3, True)
    stop_all([worker])


def test_an_exit_code_that_multiprocessing_uses_itself_is_told_as_such() -> None:
    """255, as of sys.exit(-1): also what it says of a process whose server has died."""
    left, orphan = started(leave, 255, method="forkserver"), started(sleep, method="forkserver", number=1)
    wait_until(lambda: not left.is_alive())
    found = left.examine(dispatcher=False, num_shards=3)
    assert (found.exitcode, found.own, found.cause) == (255, True, "exited with code 255")
    os.kill(fork_server.pid(), signal.SIGKILL)
    wait_until(lambda: not orphan.is_alive())
    found = orphan.examine(dispatcher=False, num_shards=3)
    assert (found.exitcode, found.own, found.cause) == (255, False, "has ended with the server that had forked it")
    stop_all([left, orphan])


def test_a_process_of_the_forkserver_whose_end_was_told_does_not_run_though_the_server_has_yet_to_hang_up() -> None:
    """It closes the pipe after it has told: until then, nothing is to be read there."""
    worker = started(sleep, method="forkserver")
    silent, writing = os.pipe()
    told = os.dup(worker.sentinel)
    os.dup2(silent, worker.sentinel)  # as it is between the two
    worker.process._popen.returncode = 0
    assert not worker.is_alive()
    worker.process._popen.returncode = None
    assert worker.is_alive()
    os.dup2(told, worker.sentinel)
    for end in (silent, writing, told):
        os.close(end)
    stop_all([worker])
    assert worker.process is None


def test_a_frozen_programs_script_is_in_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes have it without importing it: multiprocessing leaves it be."""
    main = SimpleNamespace(__spec__=None, __file__="/gone/script.py")
    monkeypatch.setitem(sys.modules, "__main__", main)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="/gone/script.py is no file"):
        main_module.check_main_module("worker 0", "spawn")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    main_module.check_main_module("worker 0", "spawn")


def close_and_sleep(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    os.closerange(3, 1 << 16)  # as what makes daemons does
    sleep(setup, sock, page, arena)


def test_one_that_closes_all_its_files_and_lives_on_is_killed() -> None:
    worker = started(close_and_sleep)
    wait_busy(worker)
    assert worker.examine(dispatcher=False, num_shards=3).exitcode == -signal.SIGKILL
    stop_all([worker])


# --- signals ---


def report_signals(setup: Any, sock: Any, page: StatusPage, arena: Arena) -> None:
    """As a worker does, through the runtime's own entry."""

    def run(channel: Any) -> None:
        blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        ours = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        page[Field.INDEX] = int(ours == (signal.SIG_IGN, signal.SIG_DFL) and not blocked)
        page[Field.LANE] = BUSY

    serve(setup, sock, page, run)


@pytest.mark.parametrize("method", PROCESSES)
def test_a_worker_ignores_ctrl_c_and_has_none_of_the_main_process_s_handlers(method: str) -> None:
    """A handler that saves a checkpoint on SIGTERM, say, must not run in every forked worker."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        worker = started(report_signals, method=method)
        wait_busy(worker)
        assert worker.page[Field.INDEX] == 1
        stop_all([worker])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_waits_for_the_end_of_a_start_and_is_not_lost() -> None:
    def take() -> None:
        held.wait(60)
        signal.raise_signal(signal.SIGINT)

    # Not by os.kill(): whichever thread takes that one may do so long after the block
    reached, held = [], threading.Event()
    thread = threading.Thread(target=take)
    thread.start()  # before the block: else it would inherit what is blocked
    for send in (lambda: signal.raise_signal(signal.SIGINT), lambda: (held.set(), thread.join())):
        with pytest.raises(KeyboardInterrupt), _ctrl_c_held():
            send()
            reached.append(send)
        assert reached[-1] is send
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_ctrl_c_that_the_main_process_ignores_or_handles_stays_so() -> None:
    came = []
    for handler in (signal.SIG_IGN, lambda number, frame: came.append(number)):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with _ctrl_c_held():
                signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)
    assert came == [signal.SIGINT]


def test_a_start_in_another_thread_leaves_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def hold() -> None:
        with _ctrl_c_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [before]


# --- the pool ---


def test_a_wake_up_after_the_close_goes_nowhere() -> None:
    """The wake-up's descriptor may be another file by then."""
    pool = WorkerPool(threading.RLock())
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


def test_L6_an_interrupt_at_any_instruction_while_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every single one: between two of them, processes were forgotten. What still lives is left to the next call."""
    monkeypatch.setattr(worker_pool, "stop_all", partial(worker_pool.stop_all, grace_s=0.02))
    number, beyond = 0, False
    while not beyond:
        number += 1
        pool = WorkerPool(threading.RLock())
        pool.start(made(sleep_deaf))
        (worker,) = pool
        wait_busy(worker)
        interrupter = Interrupter(number, ("reading_services._supervision", "reading_services._transport"))
        try:
            with interrupter:
                pool.close()
            assert interrupter.hit is None
            beyond = True
        except Interrupt:
            pool.close()
        assert not worker.is_alive(), interrupter.hit
        assert list(pool) == [], interrupter.hit
    assert number > 100


def leave_a_stopped_worker() -> None:
    pool = WorkerPool(threading.RLock())
    worker = made(sleep)
    pool.start(worker)
    wait_busy(worker)
    os.kill(worker.pid, signal.SIGSTOP)
    multiprocessing.current_process().pool = pool  # type: ignore[attr-defined]  # not forgotten: it lives until the end


def test_a_process_of_multiprocessing_ends_also_with_a_stopped_worker() -> None:
    """As ranks do that a launcher has started: at their end multiprocessing waits for their children."""
    rank = multiprocessing.get_context("fork").Process(target=leave_a_stopped_worker)
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    rank.close()


def test_a_process_is_none_of_the_pool_s_until_it_has_been_started() -> None:
    """Its number would be 0: a kill of that is one of the own process group."""
    pool, seen, beside = WorkerPool(threading.RLock()), [], made(sleep, number=1)

    class Looked(multiprocessing.context.ForkProcess):
        def start(self) -> None:
            seen.append([worker.pid for worker in pool])
            super().start()
            seen.append([worker.pid for worker in pool])

    pool.start(beside)
    worker = made(sleep)
    worker._context = SimpleNamespace(Process=Looked, get_start_method=lambda: "fork")
    pool.start(worker)
    assert seen == [[beside.pid]] * 2
    assert [each.pid for each in pool] == [worker.pid, beside.pid]
    pool.close()


def test_processes_can_be_asked_for_while_they_are_being_replaced() -> None:
    pool, over, errors = WorkerPool(threading.RLock()), threading.Event(), []

    def ask() -> None:
        try:
            while not over.is_set():
                [worker.pid for worker in pool if worker.is_alive()]
        except Exception as error:
            errors.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(20):
            for number in range(3):
                pool.start(made(leave, 0, number=number))
            for worker in pool:
                worker.process.join()
                pool.bury(worker.worker)
    finally:
        over.set()
        asker.join()
        pool.close()
    assert errors == []


def test_L6_one_that_takes_its_time_to_die_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it took longer than it was waited for, and stayed behind as a zombie, with its pipes."""
    monkeypatch.setattr(process, "_REAP_S", 0.0)  # what is too short for it is a matter of the machine
    before = leaks.Footprint.take()
    for number in range(8):
        worker = started(sleep, number=number)
        wait_busy(worker)
        os.kill(worker.pid, signal.SIGSTOP)  # it does not end by itself, as its connection is closed
        worker.silenced = number % 2 == 0
        found = worker.examine(dispatcher=False, num_shards=1)
        assert not (worker.silenced and found.own)  # its end is of our making
        worker.release()
        del worker
    assert leaks.wait_nothing_left(before) == []
