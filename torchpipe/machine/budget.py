"""The part of the machine that choosing by measurement (``autotune``) may use."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torchpipe.machine.limits import Limits

__all__ = ["Budget", "available_cores", "budget_of", "machine_busy_s", "visible_cores"]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of ``autotune``: CPU cores, this process's included, and memory of all workers together.

    None: the cores that this process may use; half of the memory that is available when the first epoch begins. Limits
    of a container count in both.
    """

    cores: float | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("cores", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise ValueError(f"{name} of a Budget must be a positive number or None, got {value!r}")

    def filled(self) -> Budget:
        """With what this machine has."""
        return Budget(cores=self.cores or available_cores(), memory_bytes=self.memory_bytes or _available_bytes() // 2)


def available_cores() -> int:
    """The number of cores that this process may use: those that it may run on, at most its container's share."""
    quota = Limits().cores()
    return visible_cores() if quota is None else max(1, min(visible_cores(), round(quota)))


def visible_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_busy_s() -> float:
    """CPU seconds of all processes since the machine was started; 0 where the system does not tell."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def budget_of(autotune: bool | Budget, num_workers: int) -> Budget | None:
    """The budget of a loader's argument; None: nothing is chosen. Raises: TypeError, and ValueError without workers."""
    if not isinstance(autotune, bool | Budget):
        raise TypeError(f"autotune must be True, False or a torchpipe.stats.Budget, got {autotune!r}")
    if autotune is False:
        return None
    if not num_workers:
        raise ValueError(
            "autotune chooses how many of num_workers processes are at work, and num_workers=0 starts none: give the "
            "most that it may start"
        )
    return Budget() if autotune is True else autotune


def _available_bytes() -> int:
    """Memory that could be taken now, as far as the system tells."""
    try:
        with open("/proc/meminfo", "rb") as file:
            fields = dict(line.split(b":") for line in file)
        free = int(fields[b"MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    left = Limits().memory_left_bytes()
    return free if left is None else max(1, min(free, left))
