"""A Python that has imported torch and the project once, and forks a process for each script that a test runs.

Importing them takes a process two seconds of a core, and taking that down almost one more. Tests have the fixture
``warm`` of it, those of XLA ``warm_xla``; one whose script is about importing, exiting or the command line of Python
starts a process of its own.

Runs as ``python -m tests.warm MODULE...``, which names what to import: reads a list of jobs as a line of JSON, answers
with the numbers of their processes, and then with their exit codes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

__all__ = ["XLA_MODULES", "Warm"]

ROOT = Path(__file__).parents[1]
SHOW_STACKS = signal.SIGRTMIN + 9  # on stderr, in C: of a process that is stuck in a lock too
# What importing torch_xla takes, without its runtime: that must not be forked.
XLA_MODULES = ("torch_xla.distributed.spmd", "torch_xla.distributed.parallel_loader", "torchpipe.xla")
_SHOWN_S = 2.0
_PR_SET_PDEATHSIG = 1


class Warm:
    """Owner of the process, a child of this one: what its scripts leave behind is found as what a test leaves behind.

    For ``with``, which starts and ends it. Not for several threads at once.
    """

    def __init__(self, *options: str, modules: Sequence[str] = (), project: bool = True) -> None:
        """``options``: Python's own, for all scripts. They find ``modules`` imported, torch among them, and, unless not
        ``project``, all that the project has.
        """
        self._options = options
        self._modules = modules
        self._project = project
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        modules = [*_of_the_project(), *self._modules] if self._project else self._modules
        self._process = subprocess.Popen(
            [sys.executable, *self._options, "-m", "tests.warm", *modules],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"
        return self

    def run(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        meanwhile: Callable[[int, Path], object] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` of ``python`` with that ``command`` (a script, or ``-m`` and a module) has it.

        ``meanwhile`` is called with the number of its process and the file that its stdout goes to.
        """

        def of_one(pids: list[int], said: list[Path]) -> None:
            if meanwhile is not None:
                meanwhile(pids[0], said[0])

        return self.run_together([command], cwd=cwd, env=env, meanwhile=of_one)[0]

    def run_together(
        self,
        commands: Sequence[Sequence[str]],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        meanwhile: Callable[[list[int], list[Path]], object] | None = None,
    ) -> list[subprocess.CompletedProcess[str]]:
        """What became of several that run at the same time. If this call is interrupted (a test has met its limit), or
        ``meanwhile`` raises, all of them are killed, and their stacks and what they had said on stderr are said on this
        process's.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        with tempfile.TemporaryDirectory() as folder:
            names = [[f"{folder}/{number}.{stream}" for stream in ("out", "err")] for number in range(len(commands))]
            shared = {"cwd": str(cwd), "environment": dict(os.environ if env is None else env)}
            jobs = [{"command": [*one], "streams": streams, **shared} for one, streams in zip(commands, names)]
            self._process.stdin.write(json.dumps(jobs) + "\n")
            self._process.stdin.flush()
            pids: list[int] | None = None
            try:
                pids = self._answer()
                if meanwhile is not None:
                    meanwhile(pids, [Path(said) for said, _ in names])
                codes = self._answer()
            except BaseException:
                pids = self._answer() if pids is None else pids
                _show_stacks(pids, [Path(error) for _, error in names])
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._answer()
                raise
            return [
                subprocess.CompletedProcess([*one], code, *(Path(name).read_text() for name in streams))
                for one, code, streams in zip(commands, codes, names)
            ]

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _of_the_project() -> list[str]:
    # Not above: conftest imports this file where no test needs torch
    from torchpipe.public_names import NAMES
    from torchpipe.rings import is_here

    return sorted({module for names in NAMES.values() for module in names.values() if is_here(module)})


def _show_stacks(pids: Sequence[int], said: Sequence[Path]) -> None:
    """On stderr, with what the processes have said there: the last lines of each."""
    waiting = {}
    for pid, path in zip(pids, said):
        path.touch()
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED):
                waiting[path] = path.stat().st_size
                os.kill(pid, SHOW_STACKS)
    deadline = time.monotonic() + _SHOWN_S
    while time.monotonic() < deadline and any(path.stat().st_size == size for path, size in waiting.items()):
        time.sleep(0.02)
    for pid, path in zip(pids, said):
        print(f"----- process {pid}:\n{path.read_bytes().decode(errors='replace')[-5000:]}", file=sys.stderr)


def serve() -> dict[str, Any] | None:
    """Fork a process for each job. Returns in these, with the job; ``None`` in this one, once nobody asks any more."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        pids = []
        for job in json.loads(line):
            pid = os.fork()
            if pid == 0:
                return job  # type: ignore[no-any-return]
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
    return None


def become(job: dict[str, Any]) -> None:
    """Run the job's script as if this process had been started for it, and end."""
    code, interrupted = 0, False
    try:
        _run(job)
    except SystemExit as error:
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    # What the interpreter does at its end, but for taking down what was imported: that copies every page
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if vars(sys.modules["__main__"]) is not globals():  # a script's; a module's have been cleared
        vars(sys.modules["__main__"]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _run(job: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, name in enumerate([os.devnull, *job["streams"]]):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(SHOW_STACKS)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ |= job["environment"]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    option, *rest = job["command"]
    if option == "-m":
        sys.path[0] = job["cwd"]
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(option).parent)
        sys.argv = [option, *rest]
        main = types.ModuleType("__main__")
        main.__file__ = option
        sys.modules["__main__"] = main  # for good: what ends with the process may look for it
        exec(compile(Path(option).read_bytes(), option, "exec"), vars(main))


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    if (job := serve()) is None:
        os._exit(0)  # without taking down, in a second, what has been imported
    become(job)
