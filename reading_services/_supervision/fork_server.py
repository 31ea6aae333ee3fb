"""The server that forks processes under ``forkserver``: is it there, and if it is no more, how has it ended?

Runs in the main process. Owner: multiprocessing. There is one for the program; another one is started if it has died
when it is asked for the next process. It may be killed at any moment, and what it has forked ends with it.
"""

from __future__ import annotations

import os
import time
from multiprocessing import forkserver
from typing import Any

__all__ = ["ensure_running", "how_it_ended"]

_POLL_S = 1e-3
_server: Any = forkserver._forkserver


def ensure_running() -> None:
    """Start the server, if it does not run."""
    pid = _server._forkserver_pid
    try:
        forkserver.ensure_running()
    except ChildProcessError:
        # It is no child of this process, which was forked off its parent, or somebody else has waited for it.
        # multiprocessing would not get beyond that any more
        with _server._lock:
            if _server._forkserver_pid == pid:  # no other thread was faster
                os.close(_server._forkserver_alive_fd)
                _server._forkserver_alive_fd = _server._forkserver_address = _server._forkserver_pid = None
        forkserver.ensure_running()


def how_it_ended(timeout_s: float) -> tuple[int, int | None]:
    """The server's pid, and its exit code as multiprocessing gives it: negative is a signal. multiprocessing is left to
    wait for it. The code is None if the server does not end within ``timeout_s``, or somebody else has waited for it.
    """
    pid, deadline = int(_server._forkserver_pid), time.monotonic() + timeout_s
    try:
        while (end := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > deadline:
                return pid, None
            time.sleep(_POLL_S)
    except ChildProcessError:
        return pid, None
    return pid, end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
