"""Runs in processes of their own: started, watched, and ended with all that they leave. For the auditing process.

What a run has started is found by its session or its environment (:class:`Family`), also by the process that forks the
runs, which clears up if the auditing process ends before it could.

The order for one run, and the records of that run. Plain data between the two processes.
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
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from torchpipe.testing.audit.samples import Sample

__all__ = ["Batch", "Family", "Order", "RunResult", "Runner", "children_of"]

Batch = list[Sample]


@dataclass(frozen=True, kw_only=True)
class Order:
    """One run: from ``epoch`` (its rest, if ``load`` names a state) to ``epochs``, or to the end that is asked for.

    ``stop``: ``break`` behind so many batches, save to ``save``, and end, as a script ends or by SIGKILL (``by_kill``).
    ``save_ends``: two files, for states behind the last of ``ends`` batches, and behind the end of that epoch's loop.
    ``kill``: numbers of batches behind which a worker gets SIGKILL. ``limit``: no more batches than these. Files are
    absolute paths. ``probe``: no run; the user's objects are asked for one thing twice.
    """

    target: str
    records: str
    log: str
    identify: str | None = None
    arguments: dict[str, int | None] = field(default_factory=dict)
    epoch: int = 0
    epochs: int = 1
    load: str | None = None
    at_end: bool = False
    stop: int | None = None
    save: str | None = None
    by_kill: bool = False
    ends: int | None = None
    save_ends: tuple[str, str] | None = None
    kill: tuple[int, ...] = ()
    limit: int = 10_000
    strict: bool = False
    probe: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        return cls(**json.loads(text))


@dataclass
class RunResult:
    """The result of a run: ``epochs`` has its batches; ``error`` is (type, text, traceback).

    ``finished`` says how it came to the end that was asked for: by ``end``, ``stop`` (which saves) or ``limit``; empty
    if it did not. ``crashed``: its exit code is another than it should be.
    """

    epochs: dict[int, list[Batch]] = field(default_factory=lambda: defaultdict(list))
    made: dict[str, Any] = field(default_factory=dict)
    has_state: bool = False
    finished: str = ""
    killed: int = 0
    error: tuple[str, str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    probed: str = ""
    hung_s: float = 0.0
    left: int = 0
    code: int = 0
    crashed: bool = False
    log: str = ""

    @property
    def failed(self) -> bool:
        """True if it came to no end, or to a bad one."""
        return bool(self.hung_s) or self.error is not None or self.crashed or not self.finished

    @property
    def count(self) -> int:
        return sum(map(len, self.epochs.values()))

    def read(self, records: Path) -> None:
        """Take in what the run wrote, as far as it got."""
        text = records.read_bytes().decode(errors="replace") if records.exists() else ""
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):  # the last one may be cut off by a SIGKILL
                self._take(*json.loads(line))

    def _take(self, what: str, value: Any) -> None:
        if what == "batch":
            epoch, samples = value
            self.epochs[epoch].append([Sample(one, fields) for one, fields in samples])
        elif what == "epoch":
            self.epochs[value] = self.epochs[value]
        elif what == "killed":
            self.killed += 1
        elif what == "error":
            self.error = tuple(value)
        else:
            setattr(self, what, value)


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
