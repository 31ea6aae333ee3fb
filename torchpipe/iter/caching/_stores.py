"""Where ``cache`` keeps chunks of items: in this process's memory, or in a folder that processes share.

Runs wherever its node runs. A folder is shared without trust in any process's life:

- A chunk is a file that appears whole, by renaming, and is checked by its checksum when it is read; what is damaged
  counts as missing, and is made and written again. Two processes may write one: they write the same.
- Who makes chunks holds the lease: a lock of the operating system on a file that names its owner, which ends with the
  owner however that dies. Others wait for the chunk, not for the lease; one that sees nothing new for ``timeout_s``
  (a stopped owner, a lock server that is gone) makes the chunk for itself, and stores nothing.
- What a killed writer has left half written is written anew by the next holder of the lease.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torchpipe.errors import StateError
from torchpipe.state import decode, encode

__all__ = ["Chunk", "DiskStore", "MemoryStore", "Store", "memory_store"]

_log = logging.getLogger("torchpipe")

_POLL_S = 0.05
_LOCK, _OWNER, _ABOUT, _PART = "lease.lock", "lease.owner", "about.txt", ".part"


@dataclass
class Chunk:
    """Consecutive items, each encoded, and where the input stands after them."""

    items: list[bytes]
    after: bytes  # the input's position, encoded
    replay: int  # how many items going on from there would make again
    ended: bool  # are there no more?
    error: Exception | None = None  # raised after them; such a chunk is not kept

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.items)) + len(self.after)

    def to_bytes(self) -> bytes:
        return encode({"items": self.items, "after": self.after, "replay": self.replay, "ended": self.ended})

    @classmethod
    def of(cls, data: bytes) -> Chunk:
        """Raises: StateError for what :meth:`to_bytes` has not made."""
        state = decode(data)
        try:
            items, after, replay, ended = (state[name] for name in ("items", "after", "replay", "ended"))
        except (KeyError, TypeError) as error:
            raise StateError(f"this is no chunk of a cache ({type(error).__name__}: {error})") from error
        sound = type(items) is list and all(type(item) is bytes for item in items) and type(after) is bytes
        if not sound or type(replay) is not int or type(ended) is not bool:
            raise StateError("this is no chunk of a cache: its parts have other types")
        return cls(items, after, replay, ended)


class Store(Protocol):
    """Keeps chunks by number."""

    allow_pickle: bool  # of what it keeps?

    def get(self, number: int) -> Chunk | None:
        """The chunk, or None if it is not there."""

    def make(self, number: int, maker: Callable[[], Chunk]) -> Chunk:
        """The chunk, which was not there: made by ``maker`` and kept, or made by another process meanwhile."""


@dataclass
class MemoryStore:
    """In this process, until its node is gone; up to ``max_bytes``."""

    max_bytes: int | None
    allow_pickle: bool = True  # of its own making
    chunks: dict[int, Chunk] = field(default_factory=dict)
    nbytes: int = 0
    full: bool = False

    def get(self, number: int) -> Chunk | None:
        return self.chunks.get(number)

    def make(self, number: int, maker: Callable[[], Chunk]) -> Chunk:
        chunk = maker()
        self.full = self.full or (self.max_bytes is not None and self.nbytes + chunk.nbytes > self.max_bytes)
        if chunk.error is None and not self.full:
            self.nbytes += chunk.nbytes
            self.chunks[number] = chunk
        return chunk


_in_memory: WeakKeyDictionary[Any, dict[Any, MemoryStore]] = WeakKeyDictionary()


def memory_store(node: Any, key: Any, max_bytes: int | None) -> MemoryStore:
    """The store of ``node`` in this process: a node is a description, and keeps nothing itself."""
    return _in_memory.setdefault(node, {}).setdefault(key, MemoryStore(max_bytes))


@dataclass
class DiskStore:
    """In a folder, which is made when something is to be stored."""

    folder: Path
    about: str
    allow_pickle: bool
    timeout_s: float
    stores: bool = True  # False once nothing more can be written

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.chunk"

    def get(self, number: int) -> Chunk | None:
        path = self._path(number)
        try:
            return Chunk.of(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, StateError) as error:
            _log.warning("cache: %s cannot be read and will be made again: %s", path, error)
            return None

    def make(self, number: int, maker: Callable[[], Chunk]) -> Chunk:
        made, lease = self._wait_lease(number)
        if made is not None:
            return made
        try:
            if lease is not None:
                made = self.get(number)
                if made is not None:
                    return made
                self._begin_to_write()
            chunk = maker()
            if lease is not None and chunk.error is None:
                self._put(number, chunk)
            return chunk
        finally:
            if lease is not None:
                lease.release()

    def _wait_lease(self, number: int) -> tuple[Chunk | None, Any]:
        """The chunk, if another process has made it meanwhile; else the lease, or None if it cannot be had."""
        from filelock import FileLock, Timeout

        if not self.stores:
            return None, None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lease = FileLock(self.folder / _LOCK)
            seen, deadline = self._changed(), time.monotonic() + self.timeout_s
            while True:
                try:
                    return None, lease.acquire(timeout=0).lock
                except Timeout:
                    pass
                if self._path(number).exists() and (chunk := self.get(number)) is not None:
                    return chunk, None
                if (changed := self._changed()) != seen:
                    seen, deadline = changed, time.monotonic() + self.timeout_s
                if time.monotonic() > deadline:
                    self._tell_of_owner()
                    return None, None
                time.sleep(_POLL_S)
        except OSError as error:
            self._give_up(error)
            return None, None

    def _changed(self) -> int:
        """When a file came into the folder: does whoever holds the lease get on? To list it would take ever longer."""
        return os.stat(self.folder).st_mtime_ns

    def _begin_to_write(self) -> None:
        """With the lease: say whose it is."""
        with suppress(OSError):
            (self.folder / _OWNER).write_text(f"process {os.getpid()} on {socket.gethostname()}")
            if not (self.folder / _ABOUT).exists():
                self._write(self.folder / _ABOUT, self.about.encode())

    def _tell_of_owner(self) -> None:
        owner = "another process"
        with suppress(OSError):
            owner = (self.folder / _OWNER).read_text()[:200]
        _log.warning(
            "cache: %s holds the lease of %s and has stored nothing for %g s: going on without it, and storing nothing",
            owner,
            self.folder,
            self.timeout_s,
        )
        self.stores = False

    def _put(self, number: int, chunk: Chunk) -> None:
        try:
            self._write(self._path(number), chunk.to_bytes())
        except OSError as error:
            self._give_up(error)

    def _write(self, path: Path, data: bytes) -> None:
        """Whole or not at all, whatever happens meanwhile; with the lease, so that the part is this process's own."""
        part = path.with_name(path.name + _PART)
        try:
            part.write_bytes(data)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise

    def _give_up(self, error: OSError) -> None:
        """A full disk, or a folder that may only be read, is no reason to end a run."""
        if self.stores:
            _log.warning("cache: nothing more is stored in %s: %s: %s", self.folder, type(error).__name__, error)
        self.stores = False
