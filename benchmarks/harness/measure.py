"""CPU time and memory of this process and all below it, and how busy the machine was with other things.

Runs in the measured process. Reads /proc (Linux) and imports the standard library only.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Meter", "Usage", "descendants", "memory_bytes", "open_descriptors", "pss_bytes", "segments", "tree_cpu_s"]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def descendants(pid: int | None = None) -> list[int]:
    """The process ids below ``pid`` (default: this process), children before their own children."""
    found: list[int] = []
    waiting = [os.getpid() if pid is None else pid]
    while waiting:
        for tasks in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                below = [int(number) for number in tasks.read_text().split()]
            except OSError:  # it has just ended
                continue
            found += below
            waiting += below
    return found


def _cpu_ticks(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # utime, stime, and those of children that it has waited for; the name may hold spaces and parentheses.
    return sum(int(field) for field in text.rpartition(")")[2].split()[11:15])


def tree_cpu_s() -> float:
    """CPU seconds of this process and everything below it, ended children that were waited for included."""
    return sum(_cpu_ticks(pid) for pid in [os.getpid(), *descendants()]) * _TICK_S


def pss_bytes() -> int:
    """Memory of this process and all below it; pages that several of them share count once in all (PSS)."""
    return _sum_of("Pss:")


def memory_bytes() -> int:
    """The same, and the shared memory that is open in one of them but mapped in none: batches on their way, say."""
    return pss_bytes() + max(0, _open_shared_bytes() - _sum_of("Pss_Shmem:"))


def _sum_of(field: str) -> int:
    total = 0
    for pid in [os.getpid(), *descendants()]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(field))
    return total * 1024


def _open_shared_bytes() -> int:
    """What the shared-memory files take that these processes have open, each counted once."""
    found: dict[int, int] = {}
    for pid in [os.getpid(), *descendants()]:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                if os.readlink(link).startswith(("/dev/shm/", "/memfd:")):
                    status = os.stat(link)
                    found[status.st_ino] = status.st_blocks * 512
            except OSError:  # closed meanwhile
                continue
    return sum(found.values())


def open_descriptors() -> int:
    """Descriptors of this process alone."""
    return len(os.listdir("/proc/self/fd")) - 1  # without the one that lists them


def segments() -> int:
    """Entries of /dev/shm, other programs' included: look at the growth."""
    return len(os.listdir("/dev/shm"))


def _machine_busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) * _TICK_S


@dataclass(frozen=True)
class Usage:
    """``wall_s``; ``cpu_s`` of the process tree; ``others``: the machine's share that anyone else took, 0 to 1."""

    wall_s: float
    cpu_s: float
    others: float


class Meter:
    """Measures from its making to each ``read()``."""

    def __init__(self) -> None:
        self._busy_s = _machine_busy_s()
        self._cpu_s = tree_cpu_s()
        self._started = time.perf_counter()

    def read(self, wall_s: float | None = None) -> Usage:
        """Usage up to now; ``wall_s`` is what counts as the wall time, if it was taken elsewhere more exactly."""
        elapsed = time.perf_counter() - self._started
        cpu_s = tree_cpu_s() - self._cpu_s
        busy_s = _machine_busy_s() - self._busy_s
        capacity_s = elapsed * (os.cpu_count() or 1)
        # Ticks are 10 ms: over a short time the difference may come out below zero.
        others = min(1.0, max(0.0, (busy_s - cpu_s) / capacity_s)) if capacity_s else 0.0
        return Usage(elapsed if wall_s is None else wall_s, max(0.0, cpu_s), others)
