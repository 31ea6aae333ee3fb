"""A file without a name that two processes map: the main process makes it, and nothing is left behind whoever dies.

Runs in every process that the main process starts, and there. The mapping lives as long as there are views of it.
"""

from __future__ import annotations

import mmap
import multiprocessing.reduction
import os
import weakref
from typing import Any

from torchpipe.state.mapped import anonymous_file

__all__ = ["SharedFile"]


class SharedFile:
    """``size_bytes`` of zeros, or the file that ``fd`` is of; ``view`` shows it as items of ``form``. It owns ``fd``.

    Passed to a process as an argument, under every start method. Raises: OSError if there is no room.
    """

    def __init__(self, name: str, size_bytes: int, form: str, fd: int | None) -> None:
        new = fd is None
        self.fd = anonymous_file(name) if fd is None else fd
        # At once: one that is not finished, for an error or a Ctrl-C, is closed as well
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        if new:
            os.pwrite(self.fd, bytes(size_bytes), 0)  # not only sized: no room is an error here, and SIGBUS later
        self._map = mmap.mmap(self.fd, size_bytes)
        self.view: memoryview = memoryview(self._map).cast(form)  # type: ignore[call-overload]

    def close(self) -> None:
        """Let go of the file on this side; other mappings of it stay good. Idempotent."""
        if self.fd >= 0:
            self.view.release()
            self._map.close()
            self._finalizer()
            self.fd = -1

    def __reduce__(self) -> Any:
        return _received, (type(self), multiprocessing.reduction.DupFd(self.fd))


def _received(kind: Any, duplicate: Any) -> SharedFile:
    return kind(duplicate.detach())  # type: ignore[no-any-return]
