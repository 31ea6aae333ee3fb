"""A process that has imported a trainer and forks runs of it, since importing one takes far longer than a run.

``python -m tests.trainers.zygote MODULE`` reads jobs as JSON lines: a function of the module with its arguments, or the
path of a script. It forks a process for each rank, with the environment that torchrun gives, and answers with their
exit codes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1


def main(module: Any) -> None:
    importlib.import_module("torch._dynamo")  # which the first optimizer of each run would import
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pids = [_start(module, job, rank) for rank in range(job["ranks"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)


def _start(module: Any, job: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(job["log"].format(rank=rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if job["ranks"] > 1:
            _as_torchrun(rank, job["ranks"], job["port"])
        if "script" in job:
            runpy.run_path(job["script"], run_name="__main__")
        else:
            getattr(module, job["function"])(**job["arguments"])
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _as_torchrun(rank: int, ranks: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


if __name__ == "__main__":
    main(importlib.import_module(sys.argv[1]))
    os._exit(0)  # without taking down, in seconds, what has been imported
