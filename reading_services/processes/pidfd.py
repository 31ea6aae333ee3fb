"""A descriptor that stands for a process: it says whether that one lives, and signals it and no other.

Runs in the main process.
"""

from __future__ import annotations

import os
import weakref

from reading_services.processes.signals import ctrl_c_held

__all__ = ["open_pidfd"]


def open_pidfd(owner: object, pid: int) -> tuple[int | None, weakref.finalize[..., object] | None]:
    """(the descriptor, what closes it); it is closed with ``owner`` at the latest. None if the process has ended, and
    somebody has waited for it.
    """
    with ctrl_c_held():  # nobody would close what is not held yet
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return None, None
        return handle, weakref.finalize(owner, os.close, handle)
