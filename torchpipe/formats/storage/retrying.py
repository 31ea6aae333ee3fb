"""Trying again what fails for a moment, and files that are opened again where reading them failed.

Remote files fail now and then: a connection breaks, a server is busy. Such errors are told from lasting ones (no such
file, no permission), and tried again after 0.1, 0.2, 0.4 ... s, at most 5 s each.
"""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TypeAlias, TypeVar

from torchpipe.node.retries import try_again

__all__ = ["DEFAULT_RETRIES", "RemoteFile", "ReopenedFile", "attempt", "can_seek_back", "is_transient"]

T = TypeVar("T")

DEFAULT_RETRIES = 3
OpenAt: TypeAlias = "Callable[[int], tuple[Any, int | None, str | None]]"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 5.0
_ERRNOS = {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH,
    errno.EINTR, errno.EIO, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.EPIPE, errno.ETIMEDOUT,
}  # fmt: skip
_STATUSES = {408, 425, 429, 500, 502, 503, 504}  # of HTTP: too many requests, and what is the server's fault
# Of the packages that fsspec's systems are made of; by name, so that none is imported for this.
_NAMES = {"ClientConnectionError", "ClientPayloadError", "EndpointConnectionError", "IncompleteRead", "ProtocolError"}


def is_transient(error: BaseException) -> bool:
    """True if the same may succeed a moment later."""
    if _is_other_file(error):  # which s3fs calls busy
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    status = next(
        (getattr(error, name, None) for name in ("status", "code", "status_code") if hasattr(error, name)), None
    )
    if isinstance(status, int) and status in _STATUSES:
        return True
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    # urllib's URLError has one; fsspec calls whatever a server answers a FileNotFoundError, from what it was
    reasons = (getattr(error, "reason", None), error.__cause__)
    if any(isinstance(reason, BaseException) and is_transient(reason) for reason in reasons):
        return True
    return isinstance(error, OSError) and error.errno in _ERRNOS


def _is_other_file(error: BaseException) -> bool:
    """The server has another file than the one that was asked for: status 412 of HTTP, or what s3fs makes of it."""
    status = next((value for name in ("status", "code") if (value := getattr(error, name, None)) is not None), None)
    return status == 412 or any(kind.__name__ == "FileExpired" for kind in type(error).__mro__)


def attempt(
    do: Callable[[], T], what: str, retries: int, failed: Callable[[], None] = lambda: None, *, only_here: bool = False
) -> T:
    """``do()``, tried again up to ``retries`` times after transient errors; ``failed`` is called before each time."""
    return try_again(
        lambda _: do(),
        retries + 1,
        is_transient,
        what=what,
        note=f"{what} failed {{}} times in a row",
        wait_s=lambda number: min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** (number - 1)),
        failed=failed,
        only_here=only_here,
    )


def can_seek_back(file: Any) -> bool:
    """True if ``file`` can be read from an offset; fsspec's response that is read as it comes says so, and raises."""
    seekable = getattr(file, "seekable", None)
    return seekable is not None and bool(seekable()) and getattr(file, "r", None) is None


def _range_fetcher(file: Any) -> Callable[[int, int], bytes] | None:
    """A function that gives the bytes of ``file`` from one to before another, thread-safe; None if it has none.

    It is what fsspec gives each of its caches: one request, which leaves the file's own position alone, and asks for
    the version that was opened (s3fs: ``If-Match``). ``cat_file`` asks for the newest version, and ``read`` cannot be
    called from several threads at once.
    """
    streams = getattr(file, "r", None) is not None or type(getattr(file, "size", None)) is not int
    return None if streams else getattr(getattr(file, "cache", None), "fetcher", None)


class RemoteFile(io.RawIOBase):
    """A file for reading that has a position of its own: no request is made to go to another one.

    ``size`` is in bytes, None if it is not known.
    """

    name: str
    size: int | None = None
    _offset = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            if self.size is None:
                raise io.UnsupportedOperation(f"the size of {self.name} is not known")
            offset += self.size
        elif whence == io.SEEK_CUR:
            offset += self._offset
        if offset < 0:
            raise ValueError(f"{self.name} has no byte {offset}: offsets count from 0")
        self._offset = offset
        return offset


class ReopenedFile(RemoteFile):
    """A binary file for reading, which is opened again where it stood when a read fails for a moment.

    ``open_at(offset)`` opens it, and tells its size in bytes, or None, and its *version*: what tells this file from
    another one of the same name (an ETag, a generation), or None. It is called at once, so that a file that is
    missing is found at once. Two such files have offsets of their own, also where what ``open_at`` returns is shared.

    ``open_in_sequence`` does the same for a server that takes no ranges, see :meth:`read_in_sequence`.

    Raises: OSError where it has another size or version when it is opened again; EOFError where it ends before its
    size.
    """

    def __init__(self, path: str, open_at: OpenAt, retries: int, open_in_sequence: OpenAt | None = None) -> None:
        self.name = path
        self._open_at = open_at
        self._open_in_sequence = open_in_sequence
        self._retries = retries
        self.version: str | None = None
        self._file: BinaryIO | None = None
        self._opening = threading.Lock()  # for :meth:`fetch`
        attempt(self._opened, f"opening {path}", retries)

    @property
    def has_ranges(self) -> bool:
        """True if :meth:`fetch` reads it."""
        return self.size is not None and _range_fetcher(self._file) is not None

    def fetch(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to before ``stop``, in one request. Thread-safe. Raises: as reading."""

        def ask() -> bytes:
            with self._opening:
                fetcher = _range_fetcher(self._opened())
            assert fetcher is not None
            data = self._of_this_file(lambda: fetcher(start, stop))
            if len(data) != stop - start:
                raise ConnectionResetError(f"{self.name} gave {len(data)} bytes of {stop - start} from byte {start} on")
            return data

        return attempt(ask, f"reading {self.name} at byte {start}", self._retries, only_here=True)

    def read_in_sequence(self) -> bool:
        """From now on, read what the server sends of the whole file; False if there is no way to."""
        if self._open_in_sequence is None:
            return False
        self._drop()
        self._open_at, self._open_in_sequence = self._open_in_sequence, None
        return True

    def begin_anew(self) -> None:
        """In a forked child, whose parent may have been opening it."""
        self._opening = threading.Lock()
        self._file = None

    def _opened(self) -> BinaryIO:
        """The file, at the offset."""
        if self._file is None:
            file, size, version = self._open_at(self._offset)
            for what, now, before in (("bytes", size, self.size), ("the version", version, self.version)):
                if None not in (now, before) and now != before:
                    file.close()
                    have = (
                        f"{now} bytes now, and had {before}" if what == "bytes" else f"the version {now}, not {before}"
                    )
                    raise OSError(
                        f"{self.name} has {have}: it was replaced while it was read. Restore it, or "
                        "begin the epoch anew"
                    )
            self._file, self.size = file, size
            self.version = self.version or version
        elif self.seeks and self._file.tell() != self._offset:
            self._file.seek(self._offset)
        return self._file

    @property
    def seeks(self) -> bool:
        """True if the file can be read from an offset on. Else what stands before is read as well."""
        return can_seek_back(self._file)

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except Exception:  # it had failed already
                pass

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        before = self._offset
        if super().seek(offset, whence) != before and not self.seeks:
            self._drop()
        return self._offset

    def readinto(self, buffer: Any) -> int:
        if self.size is not None and self._offset >= self.size:
            return 0

        def read() -> bytes:
            data = self._of_this_file(lambda: self._opened().read(len(buffer)))
            if not data and self.size is not None and len(buffer):
                raise ConnectionResetError(f"{self.name} ended at byte {self._offset} of {self.size}")
            return data

        data = attempt(read, f"reading {self.name} at byte {self._offset}", self._retries, self._drop, only_here=True)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def _of_this_file(self, read: Callable[[], bytes]) -> bytes:
        """``read()``. Raises: OSError where the server says that the file is another one."""
        try:
            return read()
        except Exception as error:
            if _is_other_file(error):
                raise OSError(
                    f"{self.name} is not the file any more that it was when reading began: it was replaced while it "
                    "was read. Restore it, or begin the epoch anew"
                ) from error
            raise

    def close(self) -> None:
        self._drop()
        super().close()
