"""Writing files whole or not at all, one process at a time, and nowhere else than allowed."""

from __future__ import annotations

import os
import posixpath
import socket
import uuid
from collections.abc import Iterable
from contextlib import suppress

from torchpipe.formats.storage.paths import is_remote

__all__ = ["Lease", "path_in", "write_first", "write_whole"]


class Lease:
    """The right to make something, which one process, and in it one thread, has at a time: a lock on a file.

    The file names the owner. The kernel takes the lock back when its owner dies, however it dies.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from filelock import FileLock

        self.path = os.fspath(path)
        self._lock = FileLock(self.path, thread_local=False)

    def take(self, timeout_s: float = 0) -> bool:
        """Wait for it up to ``timeout_s`` seconds; False if another one has it still. Raises: OSError."""
        from filelock import Timeout

        try:
            self._lock.acquire(timeout=timeout_s, poll_interval=0.02)
        except Timeout:
            return False
        try:
            with open(self.path, "w") as file:
                file.write(f"process {os.getpid()} on {socket.gethostname()}")
        except BaseException:
            self.give_back()
            raise
        return True

    def owner(self) -> str:
        """The process that has it, for people."""
        try:
            with open(self.path) as file:
                return file.read(200) or "another process"
        except OSError:
            return "another process"

    def give_back(self, remove: bool = False) -> None:
        """Idempotent. With ``remove`` the file goes: another one that waits sees that, and makes a new one."""
        if remove and self._lock.is_locked:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
        self._lock.release()


def path_in(root: str | None, path: str) -> str:
    """The path to write for ``path``: within ``root``, if there is one. Raises: ValueError if it is outside.

    Names may come out of a foreign archive: ``../`` and links that lead out of ``root`` are found.
    """
    if root is None:
        return path
    if is_remote(root):
        base = root.rstrip("/")
        target = path if is_remote(path) else f"{base}/{path.lstrip('/')}"
        scheme, _, rest = target.partition("://")
        inside = f"{scheme}://{posixpath.normpath(rest)}".startswith(base + "/")
    else:
        target = os.path.join(root, path)
        real = os.path.realpath(root)
        inside = not is_remote(path) and os.path.realpath(target).startswith(real.rstrip(os.sep) + os.sep)
    if not inside:
        raise ValueError(f"{path!r} lies outside of {root!r}, where alone files may be written: nothing was")
    return target


def write_first(path: str, data: bytes) -> None:
    """Make a local file, unless another process has: whoever comes later reads the first one's."""
    part = f"{path}.{uuid.uuid4().hex}"
    try:
        with open(part, "xb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without such links
            os.replace(part, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


def write_whole(
    path: str | os.PathLike[str], mode: str, pieces: Iterable[str | bytes], part: str | None = None
) -> None:
    """Write a local file, and the folders around it: it is there whole or not at all, also if ``pieces`` raises.

    ``part`` is the name that it has until it is whole, for a writer that is the only one; by default a new one. With
    another ``mode`` than ``"w"`` the file itself is opened.
    """
    folder, name = os.path.split(path)
    if folder:
        os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, (part or f".{uuid.uuid4().hex}.part") if "w" in mode else name)
    try:
        with open(target, mode) as file:
            file.writelines(pieces)
        if "w" in mode:
            os.replace(target, path)
    except BaseException:
        if "w" in mode and os.path.exists(target):
            os.unlink(target)
        raise
