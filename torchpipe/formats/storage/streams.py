"""Open streams as items: torch's ``StreamWrapper``, which closes a file when nothing refers to it, with types.

A stream that can seek has a position, and by its stamp another file is told from the one that a state was saved with.

The facts that a process has learned of files: found again as long as the file is the same one.

Runs in any thread; of two that learn the same at once, one keeps it. Nothing of it is part of a state.
"""

from __future__ import annotations

import io
import os
import stat
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from torchpipe.compat.torch_datapipes import StreamWrapper
from torchpipe.errors import StateError

__all__ = [
    "Remembered", "Stamp", "Stamps", "StreamWrapper", "can_seek", "change_of", "check_stamp", "close_stream",
    "close_stream_after_parts", "close_streams", "identity_of", "keep_newlines", "local_stamp", "stamp_of",
    "wrap_stream",
]  # fmt: skip

Stamp: TypeAlias = "list[int | str | None]"
_TAIL_BYTES = 10_240  # a record of tar, up to which an archive is padded: one can grow without becoming longer


def wrap_stream(file: Any, *, parent: StreamWrapper | None = None, name: str) -> StreamWrapper:
    """``file`` as an item; ``parent`` is the stream that it reads from, if it is a part of one."""
    return StreamWrapper(file, parent, name)  # type: ignore[no-untyped-call]


def close_stream(stream: StreamWrapper) -> None:
    """Idempotent."""
    stream.close()  # type: ignore[no-untyped-call]


def close_stream_after_parts(stream: StreamWrapper) -> None:
    """Close it as soon as all streams that have it as their parent are closed."""
    stream.autoclose()  # type: ignore[no-untyped-call]


def close_streams(item: Any) -> None:
    """Close the streams in an item that is thrown away."""
    if isinstance(item, tuple | dict | StreamWrapper):  # not lists: they are batches, long and without streams
        StreamWrapper.close_streams(item)  # type: ignore[no-untyped-call]


def can_seek(file: Any) -> bool:
    """True if it can tell where it stands, and go there."""
    seekable = getattr(file, "seekable", None)
    return callable(seekable) and bool(seekable()) and callable(getattr(file, "tell", None))


def keep_newlines(file: Any) -> None:
    """Let a stream of text give line ends as they stand in its file, if it can change that (``reconfigure``)."""
    reconfigure = getattr(file, "reconfigure", None)
    if not callable(reconfigure):
        return
    try:
        reconfigure(newline="")
    except io.UnsupportedOperation:  # it has read ahead
        if can_seek(file):
            file.seek(file.tell())
            reconfigure(newline="")


def stamp_of(file: Any) -> Stamp | None:
    """The size of the file behind a stream and, of a local one, a checksum of its last bytes: plain data.

    Of a remote file it is the version that its server tells (an ETag, a generation), and where: a copy that lies
    elsewhere has another one. The file is the stored one: an archive, or compressed. None where nothing tells: of a
    user's stream without a file descriptor.
    """
    while file is not None:
        ends = _ends_of(file)
        if ends is not None:
            return ends
        binary = getattr(file, "buffer", file)  # of text
        raw = getattr(binary, "raw", binary)
        size = getattr(raw, "size", None)  # of a file that fsspec opens
        if type(size) is int:
            version = getattr(raw, "version", None)
            name_crc = zlib.crc32(str(getattr(raw, "name", "")).encode("utf-8", "surrogateescape"))
            return [size, f"{name_crc:08x} {version}" if isinstance(version, str) else None]
        file = getattr(file, "parent_stream", None)
    return None


def local_stamp(size: int, read_at: Callable[[int, int], bytes]) -> Stamp:
    """:func:`stamp_of` a local file of ``size`` bytes, of which ``read_at`` gives so many from a byte on."""
    return [size, zlib.crc32(read_at(_TAIL_BYTES, max(0, size - _TAIL_BYTES)))]


def _ends_of(file: Any) -> Stamp | None:
    try:
        descriptor = file.fileno()
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return local_stamp(found.st_size, lambda count, start: os.pread(descriptor, count, start))
    except (AttributeError, OSError, ValueError):  # UnsupportedOperation is one of these
        return None


def _differ(saved: Any, now: Any) -> bool:
    """True if both are known, of one path, and not the same."""
    if isinstance(saved, str) and isinstance(now, str):
        return saved[:8] == now[:8] and saved != now
    return type(saved) is int and type(now) is int and saved != now


def change_of(name: str, saved: Any, stamp: Stamp | None) -> str | None:
    """The difference of the file with ``stamp`` from the one with ``saved``, as text; None if no difference is known.

    Raises: StateError for a value that is no stamp.
    """
    if saved is None or stamp is None:
        return None
    if not (type(saved) is list and len(saved) == 2 and type(saved[0]) is int):
        raise StateError(f"the state does not say how long {name} was, but {saved!r:.40}")
    if saved[0] != stamp[0]:
        return f"it had {saved[0]} bytes, and has {stamp[0]} now"
    if _differ(saved[1], stamp[1]):
        what = "ends with other bytes" if isinstance(stamp[1], int) else f"has another version, {str(stamp[1])[9:]}"
        return f"it is as long, and {what}"
    return None


def check_stamp(name: str, saved: Any, stamp: Stamp | None) -> None:
    """Raises: StateError if ``stamp`` is that of another file than the one of the state, as far as both know it."""
    change = change_of(name, saved, stamp)
    if change is not None:
        raise StateError(f"{name} has changed since the state was saved: {change}. Restore it, or begin the epoch anew")


def _seen_of(file: Any) -> tuple[int, ...] | None:
    """Numbers that change wherever a local file is replaced or written to; None for another file."""
    try:
        found = os.fstat(file.fileno())
    except (AttributeError, OSError, ValueError):  # UnsupportedOperation is one of these
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns


class Stamps:
    """The stamps that files had when they were looked at first. Several threads may ask; it pickles."""

    def __init__(self) -> None:
        self._stamps: dict[str, Stamp | None] = {}
        self._seen: dict[str, tuple[int, ...] | None] = {}

    def check(self, path: str, file: Any) -> Stamp | None:
        """The stamp of ``file``, which is open. Raises: ValueError unless it is the one that ``path`` had at first."""
        seen = _seen_of(file)
        if seen is not None and seen == self._seen.get(path):
            return self._stamps[path]
        stamp = self.compare(path, stamp_of(file))
        self._seen[path] = seen
        return stamp

    def compare(self, path: str, stamp: Stamp | None) -> Stamp | None:
        """``stamp``. Raises: as :meth:`check`."""
        change = change_of(path, self._stamps.setdefault(path, stamp), stamp)
        if change is not None:
            raise ValueError(
                f"{path} was replaced since the graph was built, or since it was first read: {change}. Restore it, or "
                "build the graph anew and begin the epoch anew"
            )
        return stamp


T = TypeVar("T")


def identity_of(file: Any, stamp: Stamp | None) -> object:
    """The identity of an open file: another one wherever this process finds other content; None if nobody can tell."""
    return None if stamp is None or stamp[1] is None else (stamp, _seen_of(file))


class Remembered(Generic[T]):
    """A ``T`` for each of some files, by path and identity. All are forgotten once they have more than ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[str, tuple[object, T]] = {}
        self._size = 0

    def has(self, path: str) -> bool:
        """True for a file of that name, which may be another one by now."""
        return path in self._kept

    def get(self, path: str, identity: object) -> T | None:
        known, value = self._kept.get(path, (None, None))
        return None if identity is None or known != identity else value

    def keep(self, path: str, identity: object, value: T, size: int = 1) -> None:
        if identity is None:
            return
        if self._size + size > self._most:
            self._kept, self._size = {}, 0
        self._kept[path] = identity, value
        self._size += size
