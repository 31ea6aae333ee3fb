"""One process from its start to its end: how it ended, what a failed start leaves, when it is missing."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from reading_services.processes import process
from reading_services.processes.channel import ChannelClosed
from reading_services.processes.process import stop_all
from reading_services.processes.status_page import Field, StatusPage
from reading_services.processes.worker import serve
from tests.laws.executors import PROCESSES
from tests.processes.rig import BUSY, close_and_sleep, kill_itself, leave, made, sleep, started, wait_busy
from torchpipe.state.shared_list import write_file


@pytest.mark.parametrize(
    ("target", "argument", "cause", "own"),
    [
        (leave, 0, "exited with code 0", True),
        (leave, 3, "exited with code 3", True),
        (leave, 255, "exited with code 255", True),
        (kill_itself, signal.SIGKILL, "was killed by SIGKILL (signal 9)", False),
        (kill_itself, signal.SIGTERM, "was killed by SIGTERM (signal 15)", False),
        (kill_itself, signal.SIGSEGV, "was killed by SIGSEGV (signal 11)", True),
        (kill_itself, signal.SIGRTMIN + 2, f"was killed by signal {signal.SIGRTMIN + 2}", False),
    ],
)
def test_how_it_ended_and_what_it_was_at(target: Callable[..., None], argument: int, cause: str, own: bool) -> None:
    worker = started(target, argument)
    worker.process.join()
    worker.page.skipping_to(5, 17)
    end = worker.examine()
    assert (end.cause, end.own, end.lane, end.items, end.begun) == (cause, own, 5, range(17, 18), False)
    assert (end.pid, end.exitcode) == (worker.pid, worker.process.exitcode)
    worker.page.making(5, 17, 2)
    end = worker.examine()
    assert (end.items, end.begun) == (range(17, 19), True)
    worker.release()
    worker.release()  # idempotent
    assert not worker.is_alive()
    with pytest.raises(ChannelClosed):
        worker.channel.receive(wait=False)


@pytest.mark.parametrize(("code", "cause"), [(3, "exited with code 3"), (255, "or its forkserver has died")])
def test_how_one_of_the_forkserver_ended(code: int, cause: str) -> None:
    """255 is also what multiprocessing says when the server is gone."""
    worker = started(leave, code, method="forkserver")
    assert worker.wait_end(100)
    end = worker.examine()
    assert cause in end.cause
    assert end.own
    stop_all([worker])


def test_a_start_that_fails_leaves_nothing() -> None:
    worker = made(sleep, threading.Lock(), method="spawn")
    with pytest.raises(TypeError, match="cannot pickle"):
        worker.start(())
    assert not worker.is_alive()
    stop_all([worker])


def lose_two() -> None:
    """In a process of its own, whose multiprocessing keeps what it cannot wait for."""
    dead, ended = started(sleep), started(sleep, number=1)
    for worker in (dead, ended):
        wait_busy(worker)
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
    end = dead.examine()
    assert (end.own, end.exitcode, end.cause) == (False, None, "has ended (with an unknown exit code)")
    stop_all([dead, ended])
    os._exit(7)


def test_of_one_that_somebody_else_has_waited_for_nobody_knows_how_it_ended() -> None:
    """The program's own os.waitpid(-1), say."""
    parent = multiprocessing.get_context("fork").Process(target=lose_two)
    parent.start()
    parent.join()
    assert parent.exitcode == 7
    parent.close()


def test_one_that_closes_all_its_files_and_lives_on_is_killed() -> None:
    worker = started(close_and_sleep)
    wait_busy(worker)
    assert worker.examine().exitcode == -signal.SIGKILL
    stop_all([worker])


def test_one_that_was_killed_as_it_was_silent_is_said_to_be() -> None:
    worker = started(sleep)
    wait_busy(worker)
    for ready in (True, False):
        worker.ready, worker.silenced = ready, True
        worker.signal(signal.SIGKILL)
        assert worker.wait_end(100)
        end = worker.examine()
        assert end.own != ready  # one that never began will not begin the next time either
    stop_all([worker])


def report_signals(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
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


# --- signs of life, against a clock that the tests move ---


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(process, "time", clock)
    return clock


def missing(worker: Any, clock: Clock, after_s: float, limit_s: float | None = 30) -> bool:
    """Is it, when it was looked at every 5 s?"""
    for _ in range(round(after_s / 5)):
        clock.now_s += 5
        found = worker.is_missing(limit_s)
    return bool(found)


def test_L4_a_slow_start_is_no_silence(clock: Clock) -> None:
    """A process that took longer to start than the timeout was killed as it became ready, again and again."""
    worker = made(sleep)
    assert not missing(worker, clock, 60)  # it is still starting
    worker.ready = True
    worker.seen()
    assert not missing(worker, clock, 30)
    assert missing(worker, clock, 5)
    worker.release()


def test_L7_one_that_does_not_start_is_missing_after_two_minutes(clock: Clock) -> None:
    """Without a timeout as well: a fork may wait for ever for a lock that another thread held."""
    worker = made(sleep)
    assert not missing(worker, clock, 120, None)
    assert missing(worker, clock, 10, None)
    worker.ready = True
    worker.seen()
    assert not missing(worker, clock, 3600, None)
    worker.release()


def test_L4_a_time_in_which_nobody_looked_is_no_silence(clock: Clock) -> None:
    """Both sides may have been stopped."""
    worker = made(sleep)
    worker.ready = True
    worker.seen()
    assert not missing(worker, clock, 15)
    clock.now_s += 3600
    assert not missing(worker, clock, 5)  # the process has had no time to beat
    assert missing(worker, clock, 15)
    worker.page[Field.BEAT] += 1
    assert not missing(worker, clock, 30)
    assert missing(worker, clock, 10)
    worker.release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_pidfds_is_an_error_that_names_the_way_out(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    with pytest.raises(OSError, match=r'pidfd_open.*worker_method="thread"') as caught:
        started(leave, 0)
    assert caught.value.errno == number


def test_a_kernel_without_memory_files_has_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refused)
    handle, spans = write_file("test", [memoryview(b"abc")])
    assert os.pread(handle, spans[0][1], spans[0][0]) == b"abc"
    os.close(handle)
