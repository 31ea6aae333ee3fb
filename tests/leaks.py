"""What a test may leave behind: nothing (law L6). Takes the measure before a test and names what is too much after it.

Runs in the test process. Counts child processes at any depth, Python threads, shared-memory entries named
``torchpipe*`` and open file descriptors. What the standard library keeps for the life of a process does not count:
multiprocessing's resource tracker and fork server (though the fork server's children do).
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

__all__ = ["Footprint", "descendants", "kill_left", "left_since", "wait_nothing_left"]

SHARED_MEMORY = Path("/dev/shm")
GRACE_S = 5.0
# Threads that libraries start once and keep: fsspec's event loop, tqdm's monitor, and pyarrow's that call Python
LIBRARY_THREADS = ("fsspecIO", "tqdm", "execnet", "pymp-", "Dummy-")
# Opened once by libraries, or belonging to no one: devices, kernel tables, interpreter and package files.
LIBRARY_FILES = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/nvidia", "/dev/tty", "/dev/pts", "/proc/", "/sys/")


@dataclass(frozen=True)
class Footprint:
    """What this process holds at one moment. Make one with :meth:`take`."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    segments: frozenset[str]
    descriptors: Counter[str]

    @classmethod
    def take(cls) -> Footprint:
        return cls(frozenset(_children()), frozenset(_threads()), frozenset(_segments()), _descriptors())


def _singletons() -> tuple[set[int], set[int]]:
    """Process ids and descriptors of multiprocessing's two helpers, which live as long as this process."""
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver  # type: ignore[attr-defined]
    pids = {tracker._pid, server._forkserver_pid}
    descriptors = {tracker._fd, server._forkserver_alive_fd}
    return pids - {None}, descriptors - {None}


def _children_of(pid: int) -> set[int]:
    """The processes that the threads of ``pid`` started and that nobody has waited for yet."""
    found: set[int] = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.update(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        pass
    return found


def descendants() -> set[int]:
    """The numbers of all processes below this one: a tenth of the time in which psutil looks at every process."""
    found: set[int] = set()
    left = [os.getpid()]
    while left:
        pid = left.pop()
        # Twice the same: the kernel may leave one out while another of them ends
        before, now = _children_of(pid), _children_of(pid)
        while before != now:
            before, now = now, _children_of(pid)
        left += now - found
        found |= now
    return found


def _children() -> list[psutil.Process]:
    found = []
    for pid in descendants():
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    helpers, _ = _singletons()
    return [process for process in found if process.pid not in helpers]


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if not thread.name.startswith(LIBRARY_THREADS)]


def _segments() -> set[str]:
    return {name for name in os.listdir(SHARED_MEMORY) if name.startswith("torchpipe")}


def _descriptors() -> Counter[str]:
    """How often each target is open. Pipes and sockets have targets of their own, so reused numbers do not matter."""
    _, helpers = _singletons()
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # the listing's own
            continue
        if int(number) not in helpers and not target.startswith(LIBRARY_FILES):
            found[target] += 1
    return found


def _held_elsewhere(segment: str) -> bool:
    """Is a segment mapped by a living process that is not this one or its child? Then another test run owns it."""
    own = {os.getpid(), *(process.pid for process in _children())}
    for process in psutil.process_iter():
        if process.pid in own:
            continue
        try:
            if str(SHARED_MEMORY / segment) in Path(f"/proc/{process.pid}/maps").read_text():
                return True
        except OSError:
            continue
    return False


def _describe(process: psutil.Process) -> str:
    try:
        command = " ".join(process.cmdline())[:200] or process.name()
        return f"process {process.pid} ({process.status()}, parent {process.ppid()}): {command}"
    except psutil.Error:
        return f"process {process.pid}"


def left_since(before: Footprint, *, segments: frozenset[str] | None = None) -> list[str]:
    """One line for each thing that was not there ``before``. ``segments`` limits which ones are looked at."""
    now = Footprint.take()
    new_segments = now.segments - before.segments if segments is None else now.segments & segments
    lines = [_describe(process) for process in now.processes - before.processes]
    lines += [
        f"thread {thread.name!r} ({'daemon' if thread.daemon else 'not daemon'})"
        for thread in now.threads - before.threads
        if thread.is_alive()
    ]
    lines += [f"shared memory {SHARED_MEMORY / name}" for name in new_segments if not _held_elsewhere(name)]
    for target, count in (now.descriptors - before.descriptors).items():
        lines.append(f"file descriptor {target}" + (f" ({count} times)" if count > 1 else ""))
    return sorted(lines)


def wait_nothing_left(before: Footprint, *, grace_s: float = GRACE_S) -> list[str]:
    """Wait at most ``grace_s`` until nothing is left since ``before``; returns what is."""
    segments = frozenset(_segments()) - before.segments  # later ones are another test run's
    deadline = time.monotonic() + grace_s
    left = left_since(before, segments=segments)
    while left and time.monotonic() < deadline:
        # Cycles: a loader that was dropped in the middle of an epoch. More than once, as generators are closed by the
        # first collection, and what their last lines touch is left for the next.
        gc.collect()
        time.sleep(0.02)
        left = left_since(before, segments=segments)
    return left


def kill_left(before: Footprint) -> None:
    """Kill child processes that came since ``before``: the next test starts clean."""
    left = [process for process in _children() if process not in before.processes]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    killed = {process.pid for process in left}
    for child in multiprocessing.active_children():  # else it would take those that psutil waits for as alive for ever
        if child.pid in killed:
            child.join(GRACE_S)
    psutil.wait_procs(left, timeout=GRACE_S)
