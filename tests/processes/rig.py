"""Processes that do one thing, started as workers are: for the tests of how processes begin, end and are stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from reading_services.processes.process import ProcessWorker
from reading_services.processes.status_page import Field, StatusPage
from tests.sources import wait_until

__all__ = ["BUSY", "close_and_sleep", "kill_itself", "leave", "made", "sleep", "sleep_deaf", "started",
           "tell_and_sleep_deaf", "wait_busy", "wait_for_main"]  # fmt: skip

BUSY = 1  # what a process notes on its page once it does what the test is about


def made(target: Callable[..., None], *arguments: Any, method: str = "fork", number: int = 0) -> ProcessWorker:
    return ProcessWorker(
        number,
        f"worker {number}",
        context=multiprocessing.get_context(method),
        target=target,
        arguments=arguments,
        node_names={},
        send=lambda worker, message: worker.channel.send(message),
    )


def started(target: Callable[..., None], *arguments: Any, method: str = "fork", number: int = 0) -> ProcessWorker:
    worker = made(target, *arguments, method=method, number=number)
    worker.start(())
    return worker


def wait_busy(worker: ProcessWorker) -> None:
    wait_until(lambda: worker.page[Field.LANE] == BUSY)


def sleep(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
    page[Field.LANE] = BUSY
    time.sleep(1000)


def sleep_deaf(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep(setup, sock, page)


def close_and_sleep(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
    os.closerange(3, 1 << 16)  # as what makes daemons does
    sleep(setup, sock, page)


def wait_for_main(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
    for fd in setup.inherited_fds:  # a forked child's copies, the main process's end among them
        os.close(fd)
    page[Field.LANE] = BUSY
    while sock.recv(100):
        pass


def tell_and_sleep_deaf(setup: Any, sock: Any, page: StatusPage, *_: Any) -> None:
    """Once the main process has asked it to end, interrupt that one, and do not listen."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait_for_main(setup, sock, page)
    os.kill(setup.parent_pid, signal.SIGINT)
    time.sleep(1000)


def leave(setup: Any, sock: Any, page: StatusPage, arena: Any, code: int) -> None:
    os._exit(code)


def kill_itself(setup: Any, sock: Any, page: StatusPage, arena: Any, number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)
