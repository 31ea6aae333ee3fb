"""What a process has imported, made cheap for those that it forks: they copy and free page tables, not pages.

A test process has some 450 MB of objects. Forking it took 38 ms on a loaded core and 15 ms in huge pages, and a child
with a collection of its own 107 and 46 ms: a third of what all tests took was such work.
"""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

__all__ = ["settle"]

_HUGE = 2 << 20  # bytes, with pages of 4 kB
_MADV_COLLAPSE = 25  # Linux 6.1
_OBJECTS = re.compile(r"^(\w+)-(\w+) rw-p \S+ \S+ 0 *(?:\[heap\])?$", re.MULTILINE)


def settle() -> None:
    """All that lives now stays for good: collections do not look at it, and its memory is put into huge pages.

    Where the system has none, or cannot find room for them, it stays as it is.
    """
    gc.collect()
    gc.freeze()
    madvise = ctypes.CDLL(None).madvise
    for match in _OBJECTS.finditer(Path("/proc/self/maps").read_text()):
        start, end = (int(bound, 16) for bound in match.groups())
        for huge in range(-(-start // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
            madvise(ctypes.c_void_p(huge), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
