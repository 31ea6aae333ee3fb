"""``shared_list``: a list in one mapping, which all processes of a machine read, and no process has a copy of.

Runs in every process. The items lie packed in a file: a header, their bytes one after the other, and where each ends
(int64); numbers are int64 alone. Nobody writes to a file that is whole.

Who owns it. With ``path`` the file is the user's: it stays until it is removed, and what has mapped it reads on after
that. Without, it has no name (``memfd``), and every process that has the list holds it open: the kernel frees it with
the last of them, however that ends, and nothing can be left in ``/dev/shm``. A pickle says where the list is: the path,
or a process that holds it and the number of its descriptor there, by which another process of the machine opens it
(``/proc/PID/fd``). So the process that pickles must live until the other one has loaded it, as one that starts a worker
does, and hold the list; from then on each holds it by itself: a worker may outlive it, and what replaces a dead worker
is given it anew. A forked process holds what its parent held.

A process maps a list once: what is made, opened or unpickled where one of its path and digest is open is that one. So
however many graphs or items come with a list, it takes one mapping and its descriptors; and a state that holds part of
a list is loaded by a later run that has made that list again.

Objects lie in anonymous files likewise: pickled, with their large buffers after the pickle. The mappings are private:
pages are in memory once until somebody writes to them, and a write is seen by its own process alone, as after a fork.
The file has no name that could stay behind: the kernel frees it with the last process that has it open or mapped.
"""

from __future__ import annotations

import array
import base64
import hashlib
import io
import itertools
import json
import mmap
import os
import pickle
import stat
import struct
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np

__all__ = ["SharedList", "Spans", "anonymous_file", "dump_with_buffers", "load_mapped", "shared_list", "write_file"]

_ALIGNMENT = 64

Spans: TypeAlias = tuple[tuple[int, int], ...]  # in the file, of the pickle and then the buffers: (start, size)


def anonymous_file(name: str) -> int:
    """The descriptor of a file in memory that nobody else can open. Raises: OSError."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # there is none, or a sandbox refuses it
        with tempfile.TemporaryFile(prefix=f"{name}-") as file:
            return os.dup(file.fileno())


def dump_with_buffers(
    pickler: Any, value: Any, least_bytes: int = 0, *, writable: bool = False
) -> tuple[memoryview, list[memoryview]]:
    """(the pickle of ``value``, the buffers of at least ``least_bytes`` that it refers to, in place).

    With ``writable``, what is read-only stays so, in the pickle. Raises: whatever the ``pickler`` class raises over it.
    """
    buffers: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # neither in C nor in Fortran order: the pickler makes a copy
            return True
        if raw.nbytes < least_bytes or (writable and raw.readonly):
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=keep_in_band).dump(value)
    return memoryview(file.getvalue()), buffers


def write_file(name: str, parts: Iterable[memoryview]) -> tuple[int, Spans]:
    """(a new file that ``parts`` are in, where each is). Raises: OSError if there is no room."""
    fd = anonymous_file(name)
    try:
        spans, end = [], 0
        for part in parts:
            spans.append((end, part.nbytes))
            written = 0
            while written < part.nbytes:  # one call writes 2 GiB at most
                written += os.pwrite(fd, part[written:], end + written)
            end += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(fd, end)
    except BaseException:
        os.close(fd)
        raise
    return fd, tuple(spans)


def load_mapped(fd: int, spans: Spans) -> Any:
    """The object, a new one. What could be written to before can be again; what is loaded outlives the descriptor."""
    mapped = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    pickled, *buffers = (mapped[start : start + size] for start, size in spans)
    return pickle.loads(pickled, buffers=buffers)


T = TypeVar("T")

_Address: TypeAlias = tuple[str, int, int]  # a path; or "", a process and its descriptor

_HEADER = struct.Struct("<8sQQQ16s")  # what it is, are they numbers, how many, bytes of items, the digest
_MAGIC = b"TPList1\n"
_FIRST = 64  # where the items begin
_CHUNK = 4096  # items at a time
_MOST_NUMBER = (1 << 63) - 1
_OTHER = b"\xff"  # before JSON; no text in UTF-8 begins with it
_MARK = "\0"  # before the name of what JSON has no form for
_PLAIN = frozenset({str, int, float, bool, type(None)})


def shared_list(items: Iterable[T] | None = None, *, path: str | os.PathLike[str] | None = None) -> SharedList[T]:
    """A list of ``items`` that is in memory once, for all processes of this machine, however they are started.

    It is read like a tuple: by index, by iterating, in slices, which are views. Use it in the place of a long list: as
    an attribute of a dataset, in ``IterableWrapper``, ``SequenceWrapper`` and ``PathList``. Pickling it takes no
    longer and no more room than pickling its name.

    ``items``: any iterable, which is read once; beside what is packed, a few thousand items are in memory at a time.
    An item is a str, int, float, bool, None or bytes, or a list, tuple or dict of such; it comes back equal, of the
    same types, and a new one each time. A path takes its length and 8 bytes, an integer 8 bytes (up to 64 bits, if all
    are integers).

    ``path``: keep it in this file, for other machines with the same file system and for later runs, which open it with
    ``shared_list(path=...)``, at once. The file is written whole or not at all, and takes the place of a list that is
    there. Without, the list ends with the last process that has it, and is read on this machine alone.

    State: none of its own; a graph or dataset with it has the fingerprint that it has with a list of the same items.

    Raises: TypeError and ValueError for an item of another type, such as a number of numpy's, with its position;
    FileNotFoundError and ValueError for a ``path`` that is missing, a URL, or no such list; OSError where there is no
    room; where it is unpickled, FileNotFoundError if it is not there: on another machine, or when the process that sent
    it has ended or let go of it.
    """
    if items is None:
        if path is None:
            raise TypeError("shared_list needs items, or the path= of a list that is there")
        return SharedList(_once(_Mapped.of_file(_local(path))))
    if isinstance(items, str | bytes | set | frozenset | dict) or not isinstance(items, Iterable):
        raise TypeError(
            f"shared_list needs an iterable of items in an order, got {items!r:.80} of type {type(items).__name__}"
        )
    return SharedList(_once(_written(items, None if path is None else _local(path))))


def _local(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if "://" in text:
        raise ValueError(f"path= must be a local file, which processes can map, got {text!r:.200}: copy it there")
    return os.path.abspath(text)


class SharedList(Sequence[T]):
    """A list from :func:`shared_list`: a range of the items in a mapping. Never changes; slices are views."""

    __slots__ = ("__weakref__", "_mapped", "_read", "_shown")

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, mapped: _Mapped, shown: range | None = None) -> None:
        self._mapped = mapped
        self._shown = range(mapped.count) if shown is None else shown
        self._read = mapped.read

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> SharedList[T]: ...

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SharedList(self._mapped, self._shown[index])
        try:
            position = self._shown[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range of {len(self)} items") from None
        return self._read(position)

    def __len__(self) -> int:
        return len(self._shown)

    def __iter__(self) -> Iterator[T]:
        return map(self._read, self._shown)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SharedList):
            return NotImplemented
        if self._mapped.digest == other._mapped.digest and self._shown == other._shown:
            return True
        return len(self) == len(other) and all(map(_same, self, other))

    def __repr__(self) -> str:
        shown = ", ".join(f"{item!r:.60}" for item in self[:3])
        return f"shared_list([{shown}{', ...' if len(self) > 3 else ''}], {len(self)} items)"

    def __copy__(self) -> SharedList[T]:
        return self

    def __deepcopy__(self, memo: Any) -> SharedList[T]:
        return self

    def __reduce__(self) -> Any:
        shown = self._shown
        return _attached, (self._mapped.address(), self._mapped.digest, (shown.start, shown.stop, shown.step))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


class _Mapped:
    """A file of packed items, mapped. It owns ``fd``, by which other processes find a file without a name."""

    def __init__(self, fd: int, path: str) -> None:
        self.path = path
        self._fd = fd
        self._finalizer = weakref.finalize(self, os.close, fd)
        try:
            size = os.fstat(fd).st_size
            magic, numbers, self.count, end, self.digest = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        except struct.error:
            magic = b""
        ends = _FIRST + -(-end // 8) * 8 if magic == _MAGIC else 0
        if magic != _MAGIC or size != ends + (0 if numbers else 8 * (self.count + 1)):
            self._finalizer()
            raise ValueError(f"{path} is no list that shared_list has written, or not a whole one")
        self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        view = memoryview(self._map)
        self._numbers = view[_FIRST:ends].cast("q") if numbers else None
        self._ends = view[ends:].cast("q")
        if path:
            self._finalizer()  # the mapping is enough

    @classmethod
    def of_file(cls, path: str) -> _Mapped:
        return cls(os.open(path, os.O_RDONLY), path)

    def address(self) -> _Address:
        """The address for another process. Raises: OSError on a system that has no ``/proc``."""
        if self.path:
            return self.path, 0, 0
        if not os.path.exists(f"/proc/self/fd/{self._fd}"):
            raise OSError("a shared_list without a path cannot be sent to another process here: give it path=")
        return "", os.getpid(), self._fd

    @property
    def read(self) -> Any:
        """The function that makes the item at a position within the list."""
        return self._read if self._numbers is None else self._numbers.__getitem__

    def _read(self, position: int) -> Any:
        ends = self._ends
        data = self._map[_FIRST + ends[position] : _FIRST + ends[position + 1]]
        return _value(data[1:].decode()) if data[:1] == _OTHER else data.decode("utf-8", "surrogatepass")


# Those that this process has, by path and digest.
_here: weakref.WeakValueDictionary[tuple[str, bytes], _Mapped] = weakref.WeakValueDictionary()


def _once(mapped: _Mapped) -> _Mapped:
    """``mapped``, or one of the same path with the same items that is here already."""
    return _here.setdefault((mapped.path, mapped.digest), mapped)


def _attached(address: _Address, digest: bytes, shown: tuple[int, int, int]) -> SharedList[Any]:
    """The list that was pickled. Raises: FileNotFoundError."""
    path, pid, fd = address
    mapped = _here.get((path, digest))
    if mapped is None:
        with suppress(OSError, ValueError):
            mapped = _Mapped.of_file(path) if path else _Mapped(_opened(f"/proc/{pid}/fd/{fd}"), "")
    if mapped is not None and mapped.digest == digest:
        return SharedList(_once(mapped), range(*shown))
    if path:
        raise FileNotFoundError(
            f"the shared_list in {path} is not there, or another one is: its path= must be on a file system that every "
            "machine has, and stay as it is while the run goes on"
        )
    raise FileNotFoundError(
        f"a shared_list was sent by process {pid}, which is of another machine, container or user, has ended, or has "
        "let go of it: without a path it is read on one machine, while a process that has it runs. Give it one on a "
        'file system that all have: shared_list(items, path="list.bin")'
    )


def _opened(path: str) -> int:
    if not stat.S_ISREG(os.stat(path).st_mode):  # the number has come to something else, which may wait for a writer
        raise FileNotFoundError(path)
    return os.open(path, os.O_RDONLY)


def _written(items: Iterable[Any], path: str | None) -> _Mapped:
    if path is None:
        fd = anonymous_file("torchpipe-list")
        try:
            _Packing(fd).pack(items)
        except BaseException:
            os.close(fd)
            raise
        return _Mapped(fd, "")
    if os.path.lexists(path):
        _Mapped.of_file(path)  # refuses what somebody else may want to keep
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.part")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        _Packing(fd).pack(items)
        os.fsync(fd)
        os.replace(part, path)
    except BaseException:
        os.close(fd)
        with suppress(OSError):
            os.unlink(part)
        raise
    return _Mapped(fd, path)


class _Packing:
    """Writes a list into an empty file. Numbers are kept as such until there is something else."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._digest = hashlib.blake2b(digest_size=16)
        self._numbers = array.array("q")
        self._ends = array.array("q", [0])
        self._end = _FIRST

    def pack(self, items: Iterable[Any]) -> None:
        iterator, only_numbers = iter(items), True
        while chunk := list(itertools.islice(iterator, _CHUNK)):
            if only_numbers and not self._take_numbers(chunk):
                only_numbers = False
                for first in range(0, len(self._numbers), _CHUNK):
                    self._take(self._numbers[first : first + _CHUNK].tolist(), first)
                self._numbers = array.array("q")
            if not only_numbers:
                self._take(chunk, len(self._ends) - 1)
        only_numbers = len(self._numbers) > 0
        count = len(self._numbers) or len(self._ends) - 1
        if only_numbers:
            self._write(memoryview(self._numbers))
        size = self._end - _FIRST
        if not only_numbers:
            self._write(bytes(-self._end % 8))
            self._write(memoryview(self._ends))
        self._digest.update(f"{only_numbers} {count}".encode())
        header = _HEADER.pack(_MAGIC, only_numbers, count, size, self._digest.digest())
        os.pwrite(self._fd, header.ljust(_FIRST, b"\0"), 0)

    def _take_numbers(self, chunk: list[Any]) -> bool:
        if set(map(type, chunk)) != {int} or not -_MOST_NUMBER <= min(chunk) <= max(chunk) <= _MOST_NUMBER:
            return False
        self._numbers.extend(chunk)
        return True

    def _take(self, chunk: list[Any], first: int) -> None:
        """``first``: the position of the first one."""
        if set(map(type, chunk)) == {str} and (text := "".join(chunk)).isascii():
            data, lengths = text.encode(), list(map(len, chunk))
        else:
            parts = [_packed(item, first + number) for number, item in enumerate(chunk)]
            data, lengths = b"".join(parts), list(map(len, parts))
        ends = np.cumsum(lengths, dtype=np.int64) + self._ends[-1]
        self._ends.frombytes(ends.tobytes())
        self._write(data)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        while view:  # one call writes 2 GiB at most
            written = os.pwrite(self._fd, view, self._end)
            self._end += written
            view = view[written:]


def _packed(item: Any, position: int) -> bytes:
    if type(item) is str:
        return item.encode("utf-8", "surrogatepass")
    try:
        return _OTHER + json.dumps(_as_json(item), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:  # a number with too many digits, a list that holds itself
        raise type(error)(
            f"item {position} of a shared_list, a {type(item).__name__}, cannot be kept: {error}. Items are str, int, "
            "float, bool, None, bytes, and lists, tuples and dicts of these"
        ) from None


def _as_json(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_as_json(part) for part in value]
    if kind is tuple:
        return {f"{_MARK}tuple": [_as_json(part) for part in value]}
    if kind is bytes:
        return {f"{_MARK}bytes": base64.b64encode(value).decode()}
    if kind is dict:
        if all(type(key) is str and not key.startswith(_MARK) for key in value):
            return {key: _as_json(part) for key, part in value.items()}
        return {f"{_MARK}dict": [[_as_json(key), _as_json(part)] for key, part in value.items()]}
    raise TypeError(f"it has a {kind.__module__}.{kind.__qualname__}")


def _unmarked(made: dict[str, Any]) -> Any:
    if len(made) == 1:
        (name,) = made
        if name in _MAKERS:
            return _MAKERS[name](made[name])
    return made


_MAKERS: dict[str, Any] = {f"{_MARK}tuple": tuple, f"{_MARK}bytes": base64.b64decode, f"{_MARK}dict": dict}
_value = json.JSONDecoder(object_hook=_unmarked).decode
