"""The server that forks processes under ``forkserver``: is it there, and if it is no more, how has it ended?

Runs in the main process. Owner: multiprocessing. There is one for the program; another one is started if it has died
when it is asked for the next process. It may be killed at any moment, and what it has forked ends with it.
"""

from __future__ import annotations

import os
import time
from multiprocessing import forkserver
from typing import Any

__all__ = ["ensure_running", "how_it_ended", "is_gone", "pid"]

_POLL_S = 1e-3
_server: Any = forkserver._forkserver


def ensure_running() -> None:
    """Start the server, if it does not run."""
    before = _server._forkserver_pid
    try:
        forkserver.ensure_running()
    except ChildProcessError:
        # It is no child of this process, which was forked off its parent, or somebody else has waited for it.
        # multiprocessing would not get beyond that any more
        with _server._lock:
            if _server._forkserver_pid == before:  # no other thread was faster
                os.close(_server._forkserver_alive_fd)
                _server._forkserver_alive_fd = _server._forkserver_address = _server._forkserver_pid = None
        forkserver.ensure_running()


def pid() -> int:
    """Of the server that was asked last."""
    return int(_server._forkserver_pid)


def is_gone(number: int, timeout_s: float) -> bool:
    """Has the server of that pid ended, or does it within ``timeout_s``?"""
    deadline = time.monotonic() + timeout_s
    try:
        while os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
    except ChildProcessError:  # somebody has waited for it
        pass
    return True


def how_it_ended(timeout_s: float) -> tuple[int, int | None]:
    """The server's pid, and its exit code as multiprocessing gives it: negative is a signal. multiprocessing is left to
    wait for it. The code is None if the server does not end within ``timeout_s``, or somebody else has waited for it.
    """
    number = pid()
    try:
        end = os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT) if is_gone(number, timeout_s) else None
    except ChildProcessError:
        end = None
    if end is None:
        return number, None
    return number, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
