"""``SerialExecutor``: run a function in one thread or process after another, under any start method and across hosts.

Runs in any process. The lock is a file's (``filelock``, imported when it is needed: every worker would pay for it).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["SerialExecutor"]

_log = logging.getLogger("torchpipe")

T = TypeVar("T")


class SerialExecutor:
    """Runs functions one after the other among all who use the same ``path``: threads, processes, hosts.

    What ``xmp.MpSerialExecutor`` is for: preparing data once while others wait, or loading a large file by one process
    after another. That one holds a lock of the process that made it, so under ``spawn``, where each process makes its
    own, it does not exclude anybody. This one is a description, a path: make it anywhere, pickle it, in any process.
    Across hosts the path must lie on a file system that they share and that has working locks (NFS 4 has).

    The lock is released when its process dies, whatever the cause (and children that it forked meanwhile); the file
    stays. :meth:`run` may be called again inside a function that it runs in the same thread. Thread-safe.

    Args:
        path: the lock's file, made if missing, with its directory. Not the data's own file.
        timeout: seconds to wait for the others in :meth:`run`, then TimeoutError; None: as long as it takes, with a
            warning every ``warn_every_s`` seconds.

    Raises: TypeError and ValueError for arguments out of range.
    """

    def __init__(
        self, path: str | os.PathLike[str], timeout: float | None = None, *, warn_every_s: float = 60.0
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be that of the lock's file, got {path!r} of type {type(path).__name__}")
        self.path = os.path.abspath(os.fspath(path))
        if os.path.isdir(self.path):
            raise ValueError(f"path must be a file's, got the directory {self.path!r}: name a file in it")
        for name, value in (("timeout", timeout), ("warn_every_s", warn_every_s)):
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise TypeError(f"{name} must be a number of seconds, got {value!r}")
        if timeout is not None and not timeout >= 0:
            raise ValueError(
                f"timeout must be at least 0 seconds, or None to wait as long as it takes, got {timeout!r}"
            )
        if not warn_every_s > 0:
            raise ValueError(f"warn_every_s must be a positive number of seconds, got {warn_every_s!r}")
        self._timeout_s = timeout
        self._warn_every_s = float(warn_every_s)
        self._make_lock()

    def _make_lock(self) -> None:
        from filelock import FileLock

        self._pid = os.getpid()
        # One lock a thread, reentrant: threads of one process exclude each other as processes do.
        self._lock = FileLock(self.path, thread_local=True)

    def run(self, fn: Callable[[], T]) -> T:
        """Run ``fn`` while nobody else runs one; returns its result. Raises: TimeoutError; OSError for the file."""
        if not callable(fn):
            raise TypeError(f"run() takes a function without arguments, got {fn!r}: write lambda: ...")
        if self._pid != os.getpid():
            self._make_lock()  # a forked child must not believe that it holds what its parent does
        lock = self._lock
        self._acquire(lock)
        try:
            return fn()
        finally:
            lock.release()

    def _acquire(self, lock: Any) -> None:
        from filelock import Timeout

        waited_s = 0.0
        while True:
            left_s = None if self._timeout_s is None else self._timeout_s - waited_s
            step_s = self._warn_every_s if left_s is None else max(0.0, min(left_s, self._warn_every_s))
            try:
                lock.acquire(timeout=step_s)
            except Timeout:
                waited_s += step_s
            else:
                return
            if self._timeout_s is not None and waited_s >= self._timeout_s:
                raise TimeoutError(
                    f"the lock {self.path} was held by others for {self._timeout_s:g} s: is the function that one of "
                    "them runs that slow, or stuck? Allow more with timeout=..."
                )
            _log.warning(
                "still waiting for the lock %s, after %g s: another process or thread holds it", self.path, waited_s
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_timeout_s": self._timeout_s, "_warn_every_s": self._warn_every_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_lock()

    def __repr__(self) -> str:
        return f"SerialExecutor({self.path!r})"
