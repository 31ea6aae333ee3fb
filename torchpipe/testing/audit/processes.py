"""Runs in processes of their own: started, watched, and ended with all that they leave. For the auditing process.

What a run has started is found by its session or its environment (:class:`Family`), also by the process that forks the
runs, which clears up if the auditing process ends before it could.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from torchpipe.testing.audit.orders import Order, RunResult

__all__ = ["Family", "Runner", "children_of"]

_GRACE_S = 12.0  # torch's workers look every 5 s whether their parent is there
_MARK = "TORCHPIPE_AUDIT"
_PROC = Path("/proc")
_HELPERS = ("resource_tracker", "forkserver")


class Family:
    """All processes that come of one :class:`Runner`, by the ``mark`` in their environment, and by their sessions."""

    def __init__(self, mark: str) -> None:
        self.environment = {_MARK: mark}
        self.sessions: set[int] = set()
        self._own = {os.getpid()}

    @classmethod
    def of_this_process(cls) -> Family:
        return cls(os.environ[_MARK])

    def spare(self, pid: int) -> None:
        """``pid`` is none of those that are to be ended."""
        self._own.add(pid)

    def pids(self) -> Iterator[int]:
        """The processes that are there now."""
        mark = f"{_MARK}={self.environment[_MARK]}".encode()
        for folder in _PROC.glob("[0-9]*"):
            pid = int(folder.name)
            try:
                state, session = _state_of(pid)
                member = session in self.sessions or mark in (folder / "environ").read_bytes().split(b"\0")
            except (OSError, ValueError, IndexError):  # it has ended, or is somebody else's
                continue
            if member and state != "Z" and pid not in self._own:
                yield pid

    def end(self) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Runner:
    """Owner of a ``folder``, and of a process that forks one for each run. For ``with``, which ends all of it.

    ``hash_seed``: of Python's sets. Two runners may run at a time; one runs one order after the other. ``grace_s``: how
    long the processes of a run may take to end behind it.
    """

    def __init__(self, hash_seed: int, grace_s: float = _GRACE_S) -> None:
        self._hash_seed = hash_seed
        self._grace_s = grace_s
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._order: Order | None = None

    def __enter__(self) -> Self:
        self._family = Family(uuid.uuid4().hex)
        self.folder = tempfile.mkdtemp(prefix="torchpipe-audit-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchpipe.testing.audit.child", str(os.getpid()), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(self._hash_seed), **self._family.environment},
            start_new_session=True,
        )
        self._family.spare(self._process.pid)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()
        self._family.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def begin(self, order: Order) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._order = order
        self._process.stdin.write(order.to_json().encode() + b"\n")
        self._process.stdin.flush()

    def finish(self, patience_s: float) -> RunResult:
        """Wait for the run that has begun: until it has written nothing for ``patience_s``."""
        order = self._order
        assert order is not None
        result, records = RunResult(), Path(order.records)
        self._family.sessions.add(self._answer(60.0 + patience_s))
        seen, since = -1, time.monotonic()
        while (code := self._line(0.05)) is None:
            size = records.stat().st_size if records.exists() else 0
            if size != seen:
                seen, since = size, time.monotonic()
            elif time.monotonic() - since > patience_s:
                result.hung_s = patience_s
                self._family.end()
                code = self._answer(60.0)
                break
        if not result.hung_s:
            result.left = self._wait_none_left()
        self._family.end()
        result.log = Path(order.log).read_text(errors="replace")[-4000:] if Path(order.log).exists() else ""
        result.read(records)
        killed_itself = order.by_kill and result.finished == "stop"
        result.code, result.crashed = code, code != (-signal.SIGKILL if killed_itself else 0)
        return result

    def _answer(self, limit_s: float) -> int:
        answer = self._line(limit_s)
        if answer is None:
            raise RuntimeError(
                f"the process that starts the runs says nothing for {limit_s:.0f} s: is it out of memory?"
            )
        return answer

    def _line(self, limit_s: float) -> int | None:
        """The next number that the forking process says; None if it says none in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._process.stdout.fileno(), 4096)
            if not data:
                raise RuntimeError(f"the process that starts the runs has ended with code {self._process.wait()}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return int(json.loads(line))

    def _wait_none_left(self) -> int:
        """The number of processes of the run that are still there after a while."""
        deadline = time.monotonic() + self._grace_s
        while (left := len(list(self._family.pids()))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left


def _state_of(pid: int) -> tuple[str, int]:
    """(state, session) of a process. Raises: OSError if there is none."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[3])


def children_of(pid: int) -> list[int]:
    """The children of a process, but those that only help multiprocessing."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and not any(name.encode() in command for name in _HELPERS):
            found.append(int(folder.name))
    return found
