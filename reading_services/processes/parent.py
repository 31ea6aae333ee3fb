"""A worker's watch on the main process, and the signs that the worker is alive itself. Runs in workers.

Owner: one daemon thread for each worker, for its whole life. Its wait ends when the main process does, and then so does
the worker, at once and without clean-up: there is nobody left to clean up for.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
from typing import NoReturn

from reading_services.processes.pidfd import pidfd_of
from reading_services.processes.status_page import Field, StatusPage

__all__ = ["signal_at_parents_end", "watch_parent"]

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.25


def signal_at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the *thread* that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def watch_parent(parent_pid: int, page: StatusPage, *, death_signal: bool) -> None:
    """End this process when process ``parent_pid`` does; meanwhile, twice a second, count up ``page[Field.BEAT]`` and
    note CPU time and memory.

    With ``death_signal`` the kernel also kills this process when the *thread* that started it ends, which helps where
    native code keeps the interpreter lock for ever: set it only if that thread lives as long as its process.
    """
    if death_signal:
        signal_at_parents_end(signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent_pid, page), name="torchpipe-parent", daemon=True).start()


def _watch(parent_pid: int, page: StatusPage) -> None:
    try:
        handle = pidfd_of(parent_pid)
    except ProcessLookupError:
        _end()
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    while not poller.poll(_POLL_S * 1000):
        page[Field.BEAT] += 1
        page.times.publish()
    _end()


def _end() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
