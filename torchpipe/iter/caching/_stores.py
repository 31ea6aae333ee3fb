"""The stores in which ``cache`` keeps chunks of items: in this process's memory, or in a folder that processes share.

A folder is shared without trust in any process's life:

- A chunk is a file that appears whole, by renaming, and is checked by its checksum when it is read; what is damaged
  counts as missing, and is made and written again. Two processes may write one: they write the same.
- The process that makes chunks holds the lease (``writing.Lease``), which ends with it however it dies. Others wait
  for the chunk, not for the lease; one that sees nothing new for ``timeout_s`` (a stopped owner, a lock server that is
  gone) makes the chunk for itself, and stores nothing.
- A chunk that a killed writer has left half written is written anew by the next holder of the lease.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torchpipe.errors import StateError
from torchpipe.formats.storage.writing import Lease, write_whole
from torchpipe.state import decode, encode

__all__ = ["Chunk", "DiskStore", "MemoryStore", "Store", "memory_store"]

_log = logging.getLogger("torchpipe")

_POLL_S = 0.05
_LOCK, _ABOUT, _PART = "lease.lock", "about.txt", ".part"


@dataclass
class Chunk:
    """Consecutive items, each encoded, and where the input stands after them."""

    items: list[bytes]
    after: bytes  # the input's position, encoded
    replay: int  # how many items going on from there would make again
    ended: bool  # True if there are no more
    error: Exception | None = None  # raised after them; a chunk with one is not kept

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
        lease = Lease(self.folder / _LOCK)
        try:
            made = self._wait_lease(number, lease)
            if made is not None:
                return made
            chunk = maker()
            if self.stores and chunk.error is None:
                self._put(number, chunk)
            return chunk
        finally:
            lease.give_back()

    def _wait_lease(self, number: int, lease: Lease) -> Chunk | None:
        """Take the lease. Returns the chunk, if another process has made it meanwhile."""
        if not self.stores:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            seen, deadline = self._changed(), time.monotonic() + self.timeout_s
            while not lease.take():
                if self._path(number).exists() and (chunk := self.get(number)) is not None:
                    return chunk
                if (changed := self._changed()) != seen:
                    seen, deadline = changed, time.monotonic() + self.timeout_s
                if time.monotonic() > deadline:
                    self._go_on_without(lease)
                    return None
                time.sleep(_POLL_S)
            if not (self.folder / _ABOUT).exists():
                self._write(_ABOUT, self.about.encode())
        except OSError as error:
            self._give_up(error)
            return None
        return self.get(number)

    def _changed(self) -> int:
        """When a file last came into the folder, which tells whether the owner of the lease gets on. Listing would be
        slow.
        """
        return os.stat(self.folder).st_mtime_ns

    def _go_on_without(self, lease: Lease) -> None:
        _log.warning(
            "cache: %s holds the lease of %s and has stored nothing for %g s: going on without it, and storing nothing",
            lease.owner(),
            self.folder,
            self.timeout_s,
        )
        self.stores = False

    def _put(self, number: int, chunk: Chunk) -> None:
        try:
            self._write(self._path(number).name, chunk.to_bytes())
        except OSError as error:
            self._give_up(error)

    def _write(self, name: str, data: bytes) -> None:
        write_whole(self.folder / name, "wb", [data], part=name + _PART)  # with the lease: the only writer

    def _give_up(self, error: OSError) -> None:
        """A full disk, or a folder that may only be read, is no reason to end a run."""
        if self.stores:
            _log.warning("cache: nothing more is stored in %s: %s: %s", self.folder, type(error).__name__, error)
        self.stores = False
