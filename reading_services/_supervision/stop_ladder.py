"""How worker processes are ended: from asking them to killing them.

Runs in the main process. Each rung is bounded, so that the whole of it takes 5 s at most by default.
"""

from __future__ import annotations

import logging
import time

from reading_services._supervision.process import WorkerProcess
from reading_services._transport.channel import ChannelClosed
from reading_services._transport.messages import Stop

__all__ = ["stop_all"]

_log = logging.getLogger("torchpipe")


def stop_all(workers: list[WorkerProcess], grace_s: float = 1.0) -> None:
    """The ladder, for all of them at once: ask, join, terminate, kill, report. Takes twice ``grace_s`` before it kills.

    An interrupt (Ctrl-C, a signal handler that raises) takes it straight to the last rung: nobody comes here again.
    """
    try:
        _climb(workers, grace_s, ("join", "terminate", "kill"))
    except BaseException:
        _climb(workers, grace_s, ("kill",))
        raise
    finally:
        for worker in workers:
            if worker.process is not None and worker.is_alive():
                _log.error("%s (pid %d) survived SIGKILL for %.1f s", worker.name, worker.pid, _killed_s(grace_s))
            worker.release()


def _killed_s(grace_s: float) -> float:
    """How long to wait for a killed process, which has no say in it: the kernel takes its time on a busy machine."""
    return max(grace_s, 3.0)


def _climb(workers: list[WorkerProcess], grace_s: float, rungs: tuple[str, ...]) -> None:
    for worker in workers:
        try:
            worker.channel.send(Stop())
        except ChannelClosed:
            pass
        worker.channel.close()  # ends a worker that waits for room in the socket
    for rung in rungs:
        if rung != "join":
            for worker in workers:
                if worker.process is not None and worker.is_alive():
                    getattr(worker.process, rung)()
        deadline = time.monotonic() + (_killed_s(grace_s) if rung == "kill" else grace_s)
        for worker in workers:
            if worker.process is not None:
                worker.join(max(0.0, deadline - time.monotonic()))
        if not any(worker.process is not None and worker.is_alive() for worker in workers):
            break
