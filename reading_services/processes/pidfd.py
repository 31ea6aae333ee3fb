"""A descriptor that stands for a process: it says whether that one lives, and signals it and no other.

Runs in the main process.
"""

from __future__ import annotations

import errno
import os
import weakref

from reading_services.processes.signals import ctrl_c_held

__all__ = ["open_pidfd", "pidfd_of"]


def pidfd_of(pid: int) -> int:
    """A descriptor of a process. Raises: ProcessLookupError for one that has ended and was waited for; OSError, with
    the way out, where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        number = getattr(error, "errno", errno.ENOSYS)
        if number not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        raise OSError(
            number,
            "worker processes are watched by pidfd_open, which this kernel (Linux before 5.3) or sandbox refuses: use "
            'worker threads (DataLoader(..., worker_method="thread")) or no workers',
        ) from error


def open_pidfd(owner: object, pid: int) -> tuple[int | None, weakref.finalize[..., object] | None]:
    """(the descriptor, what closes it); it is closed with ``owner`` at the latest. None if the process has ended, and
    somebody has waited for it.
    """
    with ctrl_c_held():  # nobody would close what is not held yet
        try:
            handle = pidfd_of(pid)
        except ProcessLookupError:
            return None, None
        return handle, weakref.finalize(owner, os.close, handle)
