"""The private names of multiprocessing and ctypes that are used, each with its reason. Runs in the main process."""

from __future__ import annotations

import ctypes
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler

__all__ = ["CONNECTION", "SCALAR", "is_shared_type"]

CONNECTION: type = connection._ConnectionBase
"""The class of all connections: they are passed to a process while it starts, and cannot be pickled ahead."""

SCALAR: type = ctypes._SimpleCData
"""The class of all numbers of ctypes, which ``multiprocessing.RawValue`` returns."""


def is_shared_type(kind: type) -> bool:
    """True if multiprocessing has put values of this ctypes class into shared memory."""
    return kind in ForkingPickler._extra_reducers  # type: ignore[attr-defined]
