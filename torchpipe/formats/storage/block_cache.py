"""``BlockCache``: blocks of remote files on a local disk, bounded in bytes, shared by processes and runs.

Runs in any thread that reads. All lies in a folder of its own, ``torchpipe-blocks``, within the one that the user
names, and nothing else is ever deleted:

    ab/<60 digits>.block   one block: 16 bytes of header (a mark, a checksum, a length), then the data. Its name is a
                           digest of the file's URL, version and size and of the block's place
    ab/<...>.new           one that is being written; renamed when it is whole. Its writer has died if it is old
    lock                   locked by whoever adds or deletes; says how many bytes there are in all

A reader needs no lock: a block that is deleted while it is read stays readable, and one that is gone is asked for
again. Blocks say by their times when they were read last; who adds one deletes the oldest until there is room.

The division of ``storage_options``: fsspec's own, and the keys that say how torchpipe reads ahead and keeps blocks.

The three keys stand there, and not among the arguments of each reader, since, as the rest of ``storage_options``, they
say how data are reached. Every reader has them at once, no fingerprint and no state knows them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torchpipe.node.validate import check_count

__all__ = [
    "CELL_BYTES",
    "BlockCache",
    "Reading",
    "check_storage_options",
    "split_options",
]

CELL_BYTES = 1 << 20  # of a remote file
_FOLDER = "torchpipe-blocks"
_HEADER = struct.Struct("<4sIQ")
_BLOCK_BYTES = _HEADER.size + CELL_BYTES  # on disk, at most
_MARK = b"TPB1"
_NAME = re.compile(r"[0-9a-f]{60}\.block")
_NEW = ".new"
_DEAD_S = 3600.0  # nobody writes a block for so long
_ROOM = 0.1  # of the whole that is made at once: each time the folder is listed
_FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger("torchpipe")


class BlockCache:
    """At most ``most_bytes`` in ``folder``. Thread-safe; forked children may go on with it.

    What cannot be written (a full disk, a folder that was made read-only) never stops reading: the oldest half is
    deleted where there was no space, and if that does not help the process goes on without writing, with one warning.
    """

    _made: dict[tuple[str, int], BlockCache] = {}

    @classmethod
    def at(cls, folder: str, most_bytes: int) -> BlockCache:
        """The one of this process. Raises: OSError, naming the folder, if it cannot be made or written to."""
        key = (os.path.abspath(folder), most_bytes)
        if key not in cls._made:
            cls._made[key] = cls(*key)
        return cls._made[key]

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder = os.path.join(folder, _FOLDER)
        self._most = most_bytes
        self._gave_up = False
        try:
            os.makedirs(self.folder, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise type(error)(
                error.errno,
                f"cache_dir={folder!r} cannot be used ({error.strerror}): name a folder on a local disk that this "
                "process may make and write to, or leave cache_dir and cache_bytes out",
            ) from error

    def read_through(self, key: str, start: int, stop: int, fetch: Callable[[int, int], bytes]) -> bytes:
        """The bytes from ``start``, at which a block begins, to before ``stop``, at which one ends or the file does.

        ``key`` stands for one content of one file. What is not there is asked for by ``fetch``, as few times as can be.
        """
        spans = [(at, min(stop, at + CELL_BYTES)) for at in range(start, stop, CELL_BYTES)]
        found = {at: self._read(self._path(key, at), end - at) for at, end in spans}
        missing = [(at, end) for at, end in spans if found[at] is None]
        if missing:
            first, last = missing[0][0], missing[-1][1]
            data = memoryview(fetch(first, last))
            for at, end in spans:
                if first <= at < last:
                    if found[at] is None:
                        self._add(self._path(key, at), data[at - first : end - first])
                    found[at] = data[at - first : end - first]  # type: ignore[assignment]
        return b"".join(found[at] for at, _ in spans)  # type: ignore[misc]

    def _path(self, key: str, at: int) -> str:
        digest = hashlib.sha256(f"{key}\0{at}\0{CELL_BYTES}".encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self.folder, digest[:2], f"{digest[2:62]}.block")

    def _read(self, path: str, size: int) -> bytes | None:
        """The block, which has ``size`` bytes, if it is there and whole."""
        try:
            with open(path, "rb") as file:
                header, data = file.read(_HEADER.size), file.read(size + 1)
        except OSError:
            return None
        if header != _HEADER.pack(_MARK, zlib.crc32(data), size):
            with suppress(OSError):
                os.unlink(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return data

    def _add(self, path: str, data: memoryview) -> None:
        if self._gave_up:
            return
        try:
            try:
                self._write(path, data)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                with self._locked() as lock:
                    _set_total(lock, self._evict(self._total(lock) // 2))
                self._write(path, data)
        except FileNotFoundError:  # somebody deletes the folder at this moment: the next block makes it anew
            pass
        except OSError as error:
            self._gave_up = True
            _log.warning(
                "the cache in %s cannot be written to (%s): process %d goes on without adding to it, and reads what it "
                "lacks from where the data are",
                *(self.folder, error, os.getpid()),
            )

    def _write(self, path: str, data: memoryview) -> None:
        size = _HEADER.size + len(data)
        os.makedirs(os.path.dirname(path), exist_ok=True)  # somebody may have deleted all
        handle, new = tempfile.mkstemp(_NEW, dir=os.path.dirname(path))
        try:
            with open(handle, "wb") as file:
                file.write(_HEADER.pack(_MARK, zlib.crc32(data), len(data)))
                file.write(data)
            with self._locked() as lock:
                if os.path.exists(path):  # another process was quicker
                    os.unlink(new)
                    return
                total = self._total(lock)
                if total + size > self._most:
                    total = self._evict(int(self._most * (1 - _ROOM)) - size)
                if total + size > self._most:
                    os.unlink(new)
                    return
                _set_total(lock, total + size)  # first: a death in between lets the total be too large, not too small
                os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The lock file's descriptor. The kernel takes the lock back when its holder dies."""
        lock = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            # Closing alone would leave it locked while a child lives that was forked in between, which has it open too
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _total(self, lock: int) -> int:
        text = os.pread(lock, 40, 0)
        return int(text) if text.strip().isdigit() else sum(size for _, size, _ in self._blocks())

    def _evict(self, most: int) -> int:
        """Delete the blocks that were read the longest ago until there are ``most`` bytes; returns those there are."""
        blocks = sorted(self._blocks())
        total = sum(size for _, size, _ in blocks)
        for _, size, path in blocks:
            if total <= most:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total

    def _blocks(self) -> Iterator[tuple[float, int, str]]:
        """When each was read last, its bytes, its path. What dead writers have left is deleted."""
        for folder in os.scandir(self.folder):
            if len(folder.name) != 2 or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder.path):
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if _NAME.fullmatch(entry.name):
                        yield found.st_mtime, found.st_size, entry.path
                    elif entry.name.endswith(_NEW) and found.st_mtime < time.time() - _DEAD_S:
                        os.unlink(entry.path)


def _set_total(lock: int, total: int) -> None:
    os.pwrite(lock, f"{total:<39}\n".encode(), 0)


_AHEAD_BYTES = 32 << 20
_OURS = ("ahead_bytes", "cache_dir", "cache_bytes")


@dataclass(frozen=True)
class Reading:
    """``ahead_bytes``: at most so many of each open file are asked for before they are read; ``cache``: where blocks
    are kept on disk, if they are."""

    ahead_bytes: int = _AHEAD_BYTES
    cache: BlockCache | None = None


def split_options(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], Reading]:
    """fsspec's options, and torchpipe's. Raises: TypeError, ValueError, OSError, as :func:`check_storage_options`."""
    rest = dict(options or {})
    ours = {name: rest.pop(name) for name in _OURS if name in rest}
    if not ours:
        return rest, Reading()
    ahead_bytes = check_count("ahead_bytes", ours.get("ahead_bytes", _AHEAD_BYTES), at_least=0)
    folder, cache_bytes = ours.get("cache_dir"), ours.get("cache_bytes")
    if (folder is None) != (cache_bytes is None):
        raise ValueError(
            "storage_options needs cache_dir and cache_bytes together (a folder on a local disk, and how many bytes "
            f"may lie there), got cache_dir={folder!r:.100}, cache_bytes={cache_bytes!r:.40}"
        )
    if folder is None:
        return rest, Reading(ahead_bytes)
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"cache_dir must be a path, got {folder!r:.100} of type {type(folder).__name__}")
    if not os.fspath(folder) or "://" in os.fspath(folder):
        raise ValueError(f"cache_dir must be a folder on a local disk, got {folder!r:.100}")
    most = check_count("cache_bytes", cache_bytes, at_least=0)
    if most < _BLOCK_BYTES:
        raise ValueError(f"cache_bytes={most} would hold nothing: files are kept in blocks of {_BLOCK_BYTES} bytes")
    return rest, Reading(ahead_bytes, BlockCache.at(os.fspath(folder), most))


def check_storage_options(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A copy of ``options``; a cache folder that they name is made.

    Raises: TypeError and ValueError for what torchpipe's keys do not take, OSError for a folder that cannot be made or
    written to.
    """
    if options is None:
        return None
    split_options(options)
    return dict(options)
