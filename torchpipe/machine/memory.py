"""The memory that this process takes, as the system tells."""

from __future__ import annotations

import os
import resource
import sys

__all__ = ["private_bytes", "resident_bytes"]


def private_bytes() -> int:
    """The bytes of this process that are in memory and in no other process's; 0 where the system does not tell."""
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith(b"Private_"))
    except OSError:
        return 0


def resident_bytes() -> int:
    """The bytes of this process that are in memory now; where the system does not tell, their maximum so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
