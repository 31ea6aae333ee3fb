"""The right to make a file, which one process at a time has. Runs wherever its nodes run.

A lease is a lock of the kernel's on the file ``<path>.lease``, which names its owner. The kernel takes the lock back
when its owner dies, however it dies, so nobody waits for the dead; the file itself means nothing. Whoever gets the
lock looks again whether the file has been made meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["lease"]

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.1
_TAKEN = (errno.EACCES, errno.EAGAIN)


@contextmanager
def lease(path: str, timeout_s: float) -> Iterator[None]:
    """Meanwhile, no other process and no other thread has the lease of ``path``. Waits for it.

    Raises: TimeoutError, which names its owner, after ``timeout_s`` seconds.
    """
    folder = os.path.dirname(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    place = f"{path}.lease"
    deadline = time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while (file := _taken(place)) is None:
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{path} is being made by {_owner(place)}, and was not ready after {timeout_s:g} s. If that takes "
                "longer, raise the timeout (of end_caching(); CacheTimeout(seconds) does so for a whole graph)"
            )
        time.sleep(wait_s)
        wait_s = min(_LONGEST_WAIT_S, 2 * wait_s)
    try:
        yield
    finally:
        try:
            os.unlink(place)  # before the lock is given back: whoever gets it sees that this file is not there any more
        except FileNotFoundError:
            pass
        os.close(file)


def _taken(place: str) -> int | None:
    """The lock, or None if somebody else has it."""
    file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(place).st_ino == os.fstat(file).st_ino:
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} of {socket.gethostname()}".encode())
            return file
    except FileNotFoundError:  # its last owner has taken it away
        pass
    except OSError as error:
        if error.errno not in _TAKEN:
            os.close(file)
            raise
    os.close(file)
    return None


def _owner(place: str) -> str:
    try:
        with open(place) as file:
            return file.read() or "another process"
    except OSError:
        return "another process"
