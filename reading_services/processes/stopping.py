"""The steps that end processes: from asking them to killing them. Runs in the main process.

Each rung is bounded, so that the whole of it takes 5 s at most.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack

from reading_services.processes.channel import ChannelClosed
from reading_services.processes.process import ProcessWorker
from reading_services.processes.wire import Stop

__all__ = ["ask_to_stop", "stop_all"]

_log = logging.getLogger("torchpipe")

_GRACE_S = 1.0
_KILLED_S = 3.0  # a killed process has no say in it: the kernel takes its time on a busy machine


def ask_to_stop(worker: ProcessWorker) -> None:
    """Let it end once it has made what it is at."""
    try:
        worker.channel.send(Stop())
    except ChannelClosed:
        pass
    worker.channel.close()  # ends one that waits for room in the socket


def stop_all(workers: Sequence[ProcessWorker]) -> None:
    """Ask, wait, terminate, kill, report: for all of them at once.

    An interrupt (Ctrl-C, a signal handler that raises) takes it straight to the last rung: nobody comes here again.
    """
    try:
        for worker in workers:
            ask_to_stop(worker)
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            if _all_ended(workers, number):
                break
    except BaseException:
        _all_ended(workers, signal.SIGKILL)
        raise
    finally:
        with ExitStack() as stack:  # each is let go of, whatever another one raises
            for worker in workers:
                if worker.is_alive():
                    _log.error(
                        "%s (pid %d) survived SIGKILL for %.1f s: does a file system not answer?",
                        worker.name,
                        worker.pid,
                        _KILLED_S,
                    )
                stack.callback(worker.release)


def _all_ended(workers: Sequence[ProcessWorker], number: int) -> bool:
    """True if all have ended, soon after this signal (0: none)."""
    if number:
        for worker in workers:
            worker.signal(number)
    deadline = time.monotonic() + (_KILLED_S if number == signal.SIGKILL else _GRACE_S)
    return all(worker.wait_end(deadline - time.monotonic()) for worker in workers)
