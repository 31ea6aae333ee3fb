"""A file that has its name once it is whole, on disk. Runs in the process that writes shards."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["PartFile", "part_of", "sync_folder", "telling"]


@contextmanager
def telling(path: str) -> Iterator[None]:
    """OSErrors within say what has become of the shards, and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        raise OSError(
            error.errno,
            f"{error.strerror or error}. Nothing of this file is left, and the shards that the manifest lists are "
            f"whole: {'make room' if full else 'see to it that the folder can be written to'}, and call write_shards "
            "again, which goes on behind them",
            path,
        ) from error


class PartFile(io.RawIOBase):
    """Written from its start on under a name that no pattern for shards finds, then renamed. One writer at a time.

    ``sha256`` is the digest of what has been written, ``size`` are its bytes.

    Raises: OSError, which says how to go on.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._part = part_of(path)
        self._digest = hashlib.sha256()
        with telling(path):
            self._file: Any = open(self._part, "wb", buffering=1 << 20)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with telling(self.path):
            self._file.write(view)
        self._digest.update(view)
        self.size += len(view)
        return len(view)

    def finish(self) -> None:
        """All is written, and on disk."""
        with telling(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def rename(self) -> None:
        """From now on the file has its name."""
        with telling(self.path):
            os.replace(self._part, self.path)

    def discard(self) -> None:
        """Remove it, unless it has its name. Idempotent."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._part)


def part_of(path: str) -> str:
    """The path that a file has until it is whole."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.part")


def sync_folder(folder: str) -> None:
    """The names in ``folder`` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
