"""``cache``: keep what the nodes before it make, for later epochs and runs.

The stores in which ``cache`` keeps chunks of items: in this process's memory, or in a folder that processes share.

A folder is shared without trust in any process's life:

- A chunk is a file that appears whole, by renaming, and is checked by its checksum when it is read; what is damaged
  counts as missing, and is made and written again. Two processes may write one: they write the same.
- The process that makes chunks holds the lease (``writing.Lease``), which ends with it however it dies. Others wait
  for the chunk, not for the lease; one that sees nothing new for ``timeout_s`` (a stopped owner, a lock server that is
  gone) makes the chunk for itself, and stores nothing.
- A chunk that a killed writer has left half written is written anew by the next holder of the lease.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from torchpipe.errors import GraphError, StateError, raise_error_of
from torchpipe.formats.storage.writing import Lease, write_whole
from torchpipe.iter._shared.bases import OnePerItem
from torchpipe.node.content_digest import Unseen, describe_content
from torchpipe.node.context import Context
from torchpipe.node.datapipe import IterDataPipe, functional_datapipe
from torchpipe.node.graph_index import GraphIndex
from torchpipe.node.iterator import MayReplay, refusing_misfits, stored_count
from torchpipe.node.traits import node_name, walk
from torchpipe.node.validate import check_count, check_seconds
from torchpipe.randomness.global_random import GlobalRandom
from torchpipe.state import Cursor, decode, encode, opaque_notes

__all__ = ["Cacher"]

_log = logging.getLogger("torchpipe")

_POLL_S = 0.05
_LOCK, _ABOUT, _PART = "lease.lock", "about.txt", ".part"


@dataclass
class _Chunk:
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
    def of(cls, data: bytes) -> _Chunk:
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


class _Store(Protocol):
    """Keeps chunks by number."""

    allow_pickle: bool  # of what it keeps?

    def get(self, number: int) -> _Chunk | None:
        """The chunk, or None if it is not there."""

    def make(self, number: int, maker: Callable[[], _Chunk]) -> _Chunk:
        """The chunk, which was not there: made by ``maker`` and kept, or made by another process meanwhile."""


@dataclass
class _MemoryStore:
    """In this process, until its node is gone; up to ``max_bytes``."""

    max_bytes: int | None
    allow_pickle: bool = True  # of its own making
    chunks: dict[int, _Chunk] = field(default_factory=dict)
    nbytes: int = 0
    full: bool = False

    def get(self, number: int) -> _Chunk | None:
        return self.chunks.get(number)

    def make(self, number: int, maker: Callable[[], _Chunk]) -> _Chunk:
        chunk = maker()
        self.full = self.full or (self.max_bytes is not None and self.nbytes + chunk.nbytes > self.max_bytes)
        if chunk.error is None and not self.full:
            self.nbytes += chunk.nbytes
            self.chunks[number] = chunk
        return chunk


_in_memory: WeakKeyDictionary[Any, dict[Any, _MemoryStore]] = WeakKeyDictionary()


def _memory_store(node: Any, key: Any, max_bytes: int | None) -> _MemoryStore:
    """The store of ``node`` in this process: a node is a description, and keeps nothing itself."""
    return _in_memory.setdefault(node, {}).setdefault(key, _MemoryStore(max_bytes))


@dataclass
class _DiskStore:
    """In a folder, which is made when something is to be stored."""

    folder: Path
    about: str
    allow_pickle: bool
    timeout_s: float
    stores: bool = True  # False once nothing more can be written

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.chunk"

    def get(self, number: int) -> _Chunk | None:
        path = self._path(number)
        try:
            return _Chunk.of(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, StateError) as error:
            _log.warning("cache: %s cannot be read and will be made again: %s", path, error)
            return None

    def make(self, number: int, maker: Callable[[], _Chunk]) -> _Chunk:
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

    def _wait_lease(self, number: int, lease: Lease) -> _Chunk | None:
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

    def _put(self, number: int, chunk: _Chunk) -> None:
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


T = TypeVar("T")

_END: Any = object()
_contents: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of nodes: descriptions, which keep nothing themselves
_SEED, _ROUND = 0, 0xCAC4E  # of the one pass that is kept: no run's and no epoch's


class _CacheIterator(MayReplay[T]):
    node: Cacher[T]

    def __init__(self, node: Cacher[T], context: Context, source: IterDataPipe[Any]) -> None:
        super().__init__(node, context)
        self.inner = node.input_context(context)
        self.store = node.open_store(self.inner)
        self.chunk = 0
        self.index = 0  # in it
        self.ended = False
        self.before: bytes | None = None  # where the input stands before the chunk
        self.allows = True  # True if that may hold pickles
        self.replay = 0  # how many items of the input going on from there would make again
        self.making: _Making | None = None

    def to_replay(self) -> tuple[str, int]:
        return f"the input of {node_name(self.node)}", 0 if self.ended else self.replay

    def get_state(self) -> dict[str, Any]:
        return {
            "chunk": self.chunk,
            "before": Cursor(self.before, self.index),  # as a cursor, what is in it is checked as it is loaded
            "replay": self.replay,
            "ended": self.ended,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        cursor = state["before"]
        if not isinstance(cursor, Cursor) or cursor.skip > self.node.chunk_items:
            raise StateError(
                f"a cache stands in a chunk of {self.node.chunk_items} items, the state says {cursor!r:.60}"
            )
        self.chunk, self.ended = stored_count(state, "chunk"), bool(state["ended"])
        self.before, self.index, self.allows = cursor.snapshot, cursor.skip, self.context.host.allow_pickle
        self.replay = stored_count(state, "replay")
        if (self.chunk > 0) != (self.before is not None):
            raise StateError(f"chunk {self.chunk} of a cache begins at a position of its input, the state has none")

    def run(self) -> Iterator[T]:
        while not self.ended:
            found = self.store.get(self.chunk)
            chunk = found or self.store.make(self.chunk, self._make)
            allows = self.store.allow_pickle
            while self.index < len(chunk.items):
                self.index += 1
                yield decode(chunk.items[self.index - 1], allow_pickle=allows)
            if chunk.error is not None:
                raise_error_of(chunk)
            self.ended = chunk.ended
            self.before, self.allows, self.replay = chunk.after, allows, chunk.replay
            self.chunk, self.index = self.chunk + 1, 0

    def _make(self) -> _Chunk:
        """The present chunk, made by the input."""
        making = self.making
        if making is None or making.number != self.chunk:
            if making is not None:
                making.close()
            making = self.making = _Making(self.node, self.inner, self.chunk)
            if self.before is not None:
                making.go_to(self.before, self.allows)
        return making.make()

    def interrupt(self) -> None:
        if self.making is not None:
            self.making.stream.interrupt()

    def close(self) -> None:
        super().close()
        if self.making is not None:
            self.making.close()


@functional_datapipe("cache")
class Cacher(OnePerItem[T]):
    """Makes its input once, and hands the same items out in every epoch: from memory, or from the folder ``path``.

    What it hands out is one pass over the nodes before it, with a seed and global random states of its own: the same in
    every epoch, for every seed of the loader, kept or not. So put it behind what is costly and fixed (reading,
    decoding), before what is to differ (``shuffle``, augmentation). Items are copies each time, as a state keeps them.

    In memory, each process keeps what it has made, up to ``max_bytes``; what is beyond is made in every epoch. A folder
    is used by any number of processes, at a time or one after the other, and survives their deaths: whatever was stored
    whole is used. Only one makes items that are not there, in chunks of ``chunk_items``; others wait for them, at most
    ``lease_timeout_s`` without progress. Where nothing can be written, the run goes on and stores nothing.

    In a folder, items are found by what they are made of: the arguments of all nodes before it, data by content, local
    files by size and time of change, functions by their code and what they hold, ``version`` and, behind a sharding
    point, the number of shards. What may change unseen (remote files, what a generator yields) needs a ``version``, and
    another one when it has changed. What a function reads or imports by itself is not seen.

    State: the number of the chunk, the index in it, and where the input stood before it; so a resume without the stored
    items makes at most one chunk again.

    Raises: ValueError for counts below 1 or ``max_bytes`` with a path; GraphError, while iterating, behind a dispatcher
    or a device stage, and where ``on_error("skip")`` stands behind it alone; TypeError, on disk, for what may change
    unseen without ``version``, and for items that only pickle can rebuild without ``allow_pickle``.
    """

    iterator = _CacheIterator
    fingerprint_ignores = ("path", "max_bytes", "lease_timeout_s")

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        version: str | int = "",
        chunk_items: int = 32,
        allow_pickle: bool = False,
        lease_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(source_datapipe)
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"path must be a folder, got {path!r} of type {type(path).__name__}")
        if path is not None and "://" in os.fspath(path):
            raise ValueError(
                f"path must be a folder with locks, on a disk of this machine or its network, got {path!r}"
            )
        if path is not None and os.path.isfile(path):
            raise NotADirectoryError(f"path must be a folder, and {os.fspath(path)!r} is a file")
        if path is not None and max_bytes is not None:
            raise ValueError("max_bytes bounds what is kept in memory, and path= keeps it on disk: give one of them")
        self.path = None if path is None else os.path.abspath(path)
        self.max_bytes = None if max_bytes is None else check_count("max_bytes", max_bytes, at_least=0)
        self.version = version
        self.chunk_items = check_count("chunk_items", chunk_items, at_least=1, at_most=1 << 16)
        self.allow_pickle = allow_pickle
        self.lease_timeout_s = check_seconds("lease_timeout_s", lease_timeout_s)

    def input_context(self, outer: Context) -> Context:
        """That of the one pass. Raises: GraphError if the input is a stream of this epoch alone, or if nothing says
        what becomes of its items that raise.
        """
        source = self.source
        skips = outer.failures is not None and outer.failures.skips
        if skips and not any(getattr(node, "handles_errors", False) for node in walk(source)):
            raise GraphError(
                "on_error('skip') stands behind a cache, whose items are made once: one that was left out would be "
                "missing for good, unseen. Put another on_error() before it: 'skip' leaves out what cannot be "
                "made there, 'raise' nothing"
            )
        if any(id(node) in outer.substitutes for node in walk(source)):
            raise GraphError(
                "a cache stands behind nodes that run in other processes or once for all shards, whose items are those "
                "of one epoch: put the cache before them"
            )
        inner = outer.inside(GraphIndex.of(source), _SEED)
        return replace(
            inner,
            epoch=0,
            rounds=(_ROUND,),
            host=replace(
                outer.host, threads=False, announces=False, allow_pickle=True, trace=inner.host.trace, memory=None
            ),
            failures=None,
        )

    def share(self, inner: Context) -> tuple[int, int]:
        """(parts, which one) of the stream that this pass makes: the same part has the same items."""
        among = inner.graph.division(self.source)
        return inner.share(among) if among else (1, 0)

    def open_store(self, inner: Context) -> _Store:
        """The store for the items of this pass."""
        share = self.share(inner)
        if self.path is None:
            return _memory_store(self, share, self.max_bytes)
        about = (
            f"{self._content()}\n"
            f"version {self.version!r}, share {share[1]} of {share[0]}, {self.chunk_items} items in a chunk\n"
        )
        name = hashlib.sha256(about.encode()).hexdigest()[:32]
        return _DiskStore(Path(self.path, name), about, self.allow_pickle, self.lease_timeout_s)

    def _content(self) -> str:
        """A description of all that makes its items, made once in a process. Raises: TypeError for an unseen part."""
        if self not in _contents:
            try:
                _contents[self] = describe_content(self.source, lenient=self.version != "")
            except Unseen as error:
                raise TypeError(
                    f"cache(path) finds its items by what they are made of, and cannot tell whether that has changed: "
                    f"{error}. Pass version='1', and another one whenever it changes; or leave out path to keep the "
                    "items in memory"
                ) from error
        return _contents[self]


class _Making:
    """The one pass over the input, at the beginning of chunk ``number``, with global random states of its own."""

    def __init__(self, node: Cacher[Any], context: Context, number: int) -> None:
        self.number = number
        self._node = node
        self._context = context
        self._count = number * node.chunk_items
        self._random = GlobalRandom((_SEED, _ROUND, *node.share(context)))
        with self._random:
            self.stream = context.iterate(node.source)

    def go_to(self, position: bytes, allow_pickle: bool) -> None:
        """Raises: StateError for what :meth:`make` has not made."""
        state = decode(position, allow_pickle=allow_pickle)
        with refusing_misfits(node_name(self._node)):
            if "count" in state:
                with self._random:
                    self.stream.drop(stored_count(state, "count"))
                return
            loaded, random, before = state["input"], state["random"], state.get("before", {})
            with self._random:
                self.stream.load_state_dict(loaded)
            self._random.load_state_dict(random)
            self._context.shared.random.load(before)

    def make(self) -> _Chunk:
        """The next chunk. An exception of the input comes with it, in its place."""
        node, items = self._node, list[bytes]()
        item = None
        with self._random:
            stream = self.stream.items()
            try:
                while len(items) < node.chunk_items and (item := next(stream, _END)) is not _END:
                    items.append(self._encoded(item))
            except Exception as error:
                made = _Chunk(items, b"", 0, False, error)
            else:
                after, replay = self._position(len(items))
                made = _Chunk(items, after, replay, item is _END)
        self.number += 1
        self._count += len(items)
        return made

    def _encoded(self, item: Any) -> bytes:
        data = encode(item)
        notes = opaque_notes(data) if self._node.path is not None and not self._node.allow_pickle else ()
        if notes:
            kinds = ", ".join(sorted({kind for kind, _ in notes}))
            raise TypeError(
                f"the cache would store {kinds} as a pickle, which runs code when it is read: make plain data of it "
                "(numbers, arrays, tensors, dicts), or pass allow_pickle=True if no other user can write to the folder"
            )
        return data

    def _position(self, made: int) -> tuple[bytes, int]:
        """The input's position, and the number of items that going there makes again."""
        replays = self._context.shared.replaying()
        random = self._random.state_dict()
        count = self._count + made
        try:
            if any(item.replayed for item in replays):  # what it drew is known by a replay alone
                raise StateError("to be replayed")
            reached = self.stream.state_dict()
            if self._context.shared.torn():  # and here, in which order
                raise StateError("to be replayed")
            before = self._context.shared.random.state()
            return encode({"input": reached, "random": random, "before": before}), sum(
                item.to_replay()[1] for item in replays
            )
        except StateError:
            return encode({"count": count}), count

    def close(self) -> None:
        self.stream.close()
