"""One measurement in a process that is forked from this one, which has imported what it needs.

For many short measurements: importing torch takes longer than they do. Whoever calls this has started no thread, has
run nothing in torch's own threads (a forked process would wait for them) and has not touched CUDA.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

from benchmarks.harness import child
from benchmarks.harness.rounds import result_of

__all__ = ["run_forked"]


def run_forked(workload: str, peer: str, seconds: float, options: dict[str, Any], *, limit_s: float) -> dict[str, Any]:
    """As ``rounds.run_child``; nothing of it is left behind."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as problems:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(problems.fileno(), 2)
                sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))
                child.main([workload, peer, str(seconds), json.dumps(options)])
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(1)
        ended = False
        try:
            ended = _has_ended(pid, limit_s)
        finally:
            _end(pid)
            status = os.waitpid(pid, 0)[1]
        code = os.waitstatus_to_exitcode(status) if ended else None
        return result_of(output, problems, {"workload": workload, "peer": peer, **options}, code, limit_s)


def _has_ended(pid: int, limit_s: float) -> bool:
    """Within that time? It is not waited for: its number stays its own until what it left running has ended as well."""
    deadline = time.monotonic() + limit_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _end(pid: int) -> None:
    """End it and what it left running: it leads a session, or has not got so far."""
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
