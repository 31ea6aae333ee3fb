"""Bytes <-> plain data, without pickle for plain data, versioned and checked.

Runs in every process.

    "TPS" | version | checksum | length of the notes | notes | data

The notes say what the data hold that only pickle can rebuild, so that it can be told without opening them. Both are
msgpack. What that lacks (tuples, sets, tensors ...) is a list whose first element is a *tag*, an extension without
content that no user's data can hold; so nothing is nested in bytes, and neither packing nor unpacking recurses in
Python. The snapshots in cursors alone are encoded of themselves, and are opened and checked along with what holds them.

Anything else is kept as an opaque pickle. There is one place that unpickles, below, and it does so only if
``allow_pickle`` says so, which is numpy's convention for ``.npy`` files. A loader asks that question when its state is
loaded; what has passed it has no pickle left in it, however deep, unless the user allows pickles.
"""

from __future__ import annotations

import binascii
import io
import pickle
import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgpack

from torchpipe.errors import MISFITS, StateError, UnsafeStateError
from torchpipe.state.cursor import Cursor
from torchpipe.state.kinds import MAKERS, NAMED, ClassMissing, Unfit, kind_of, make_named, take_named
from torchpipe.state.pickling import dumps

__all__ = ["FORMAT_VERSION", "OpaqueItem", "as_text", "decode", "encode", "from_text", "opaque_notes"]

FORMAT_VERSION = 2
_MAGIC = b"TPS"
_HEAD = 12  # bytes before the notes
_NO_NOTES = msgpack.packb([])
_OPAQUE, _CURSOR, _EXTENSION = 8, 12, 42  # the codes of tags, beside those of kinds: part of the format
_DAMAGE = (msgpack.UnpackException, struct.error, EOFError, MemoryError)  # and misfits, in bytes that are no state
_MAX_SNAPSHOTS_DEEP = 32  # one for each stage that runs ahead of another, and two for the dispatcher
_MAX_COUNT = 1 << 62
_LONGEST_PLACE = 400  # characters
_TAGS = {code: msgpack.ExtType(code, b"") for code in (*MAKERS, _OPAQUE, _CURSOR, _EXTENSION, NAMED)}
_MARKED = {bytearray, memoryview, msgpack.ExtType}  # msgpack would pack these its own way, without asking ``extend``

Note = tuple[str, str]
"""(the type of an item that only pickle can rebuild, the node that holds it or "")."""


class OpaqueItem:
    """The stand-in that ``inspect`` shows for an item that only pickle, or a class of the user's, could rebuild."""

    def __init__(self, type_name: str, size_bytes: int) -> None:
        self.type_name = type_name
        self.size_bytes = size_bytes

    def __repr__(self) -> str:
        return f"<opaque {self.type_name}, {self.size_bytes} bytes>"


def _holds_marked(value: Any) -> bool:
    """True if there is anything in these lists and dicts that msgpack would pack without asking ``extend``."""
    kind = type(value)
    if kind is list:
        kinds = set(map(type, value))
    elif kind is dict:
        kinds = {*map(type, value), *map(type, value.values())}
        value = value.values()
    else:
        return kind in _MARKED
    if not kinds.isdisjoint(_MARKED):
        return True
    return (list in kinds or dict in kinds) and any(map(_holds_marked, value))


class _Encoder:
    """Packs one value. ``notes`` gathers what only pickle can rebuild."""

    def __init__(self, locate: Callable[[str], str] | None) -> None:
        self.notes: dict[Note, None] = {}
        self._locate = locate

    def pack(self, value: Any) -> memoryview:
        if _holds_marked(value):
            value = self._mark(value)
        # Large states are copied as rarely as can be: autoreset=False leaves the bytes in the packer's own memory
        packer = msgpack.Packer(default=self.extend, strict_types=True, autoreset=False)
        try:
            packer.pack(value)
        except UnicodeEncodeError:  # names of files that are not UTF-8; not always, because it takes a slower path
            packer = msgpack.Packer(
                default=self.extend, strict_types=True, autoreset=False, unicode_errors="surrogatepass"
            )
            packer.pack(value)
        return memoryview(packer.getbuffer())

    def _mark(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            return [self._mark(item) for item in value]
        if kind is dict:
            return {self._mark_key(key): self._mark(item) for key, item in value.items()}
        if kind is bytearray:
            return [_TAGS[10], bytes(value)]
        if kind is msgpack.ExtType:
            return [_TAGS[_EXTENSION], value.code, value.data]
        if kind is memoryview:
            raise TypeError("a memoryview cannot be kept: it looks into memory that is not its own")
        return value

    def _mark_key(self, key: Any) -> Any:
        if type(key) in _MARKED:
            raise TypeError(f"a {type(key).__name__} as the key of a dict cannot be kept")
        return key

    def extend(self, value: Any) -> list[Any]:
        """The packed form of a value that msgpack cannot pack."""
        if type(value) is Cursor:
            return self._cursor(value)
        kind = kind_of(type(value))
        try:
            if kind is not None:
                parts = kind.take(value)
                if kind.code not in (5, 6) or parts[0] is None:  # else they are memory; None: an array of objects
                    parts = self._mark(parts) if _holds_marked(parts) else parts
                return [_TAGS[kind.code], *parts]
            taken = take_named(value)
            if taken is not None:
                return [_TAGS[NAMED], *(self._mark(taken) if _holds_marked(taken) else taken)]
        except Unfit:
            pass
        return self._opaque(value)

    def _cursor(self, cursor: Cursor) -> list[Any]:
        if cursor.snapshot is not None and (notes := opaque_notes(cursor.snapshot)):
            self.notes.update(dict.fromkeys(notes))
        return [_TAGS[_CURSOR], cursor.snapshot, cursor.skip, cursor.count]

    def _opaque(self, value: Any) -> list[Any]:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        try:
            data = dumps(value)
        except Exception as error:  # code of the user's says how
            raise _Unpicklable from error
        if self._locate is not None or not any(name == kept_name for kept_name, _ in self.notes):
            self.notes[name, self._locate(name) if self._locate is not None else ""] = None
        return [_TAGS[_OPAQUE], name, data]


class _Unpicklable(Exception):
    """Its cause is what pickling a value has raised."""


def encode(value: Any, *, locate: Callable[[str], str] | None = None) -> bytes:
    """Plain data -> bytes, an independent copy of ``value``.

    Kept exactly: what ``kinds`` lists (numbers, text, bytes, containers, dates, paths, CPU tensors, arrays
    ...), nested. Other objects are stored as opaque pickles, and noted; ``locate`` tells which node holds the type.

    Raises: StateError when an object cannot even be pickled (an open file, say), is a tensor of an autograd graph, or
    nests deeper than 500 levels.
    """
    encoder = _Encoder(locate)
    try:
        data = encoder.pack(value)
        notes = msgpack.packb(list(encoder.notes)) if encoder.notes else _NO_NOTES
    except (_Unpicklable, *MISFITS) as refusal:
        error = refusal.__cause__ if isinstance(refusal, _Unpicklable) else refusal
        raise StateError(
            f"a buffered item cannot be saved ({type(error).__name__}: {error}){_where_refused(value)}. Buffer "
            "plain data instead: put shuffle() or batch() before files are opened, or after they are read"
        ) from error
    length = len(notes).to_bytes(4, "big")
    checksum = zlib.crc32(data, zlib.crc32(notes, zlib.crc32(length))).to_bytes(4, "big")
    return b"".join((_MAGIC, bytes((FORMAT_VERSION,)), checksum, length, notes, data))


def _where_refused(value: Any) -> str:
    """The path in a state to the value that cannot be encoded, through lists and dicts, as text; or ""."""
    where = ""
    while len(where) < _LONGEST_PLACE:
        parts = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
        found = next(((key, part) for key, part in parts if not _can_be_packed(part)), None)
        if found is None:
            break
        key, value = found
        where += f".{key}" if type(key) is str and key.isidentifier() else f"[{key!r:.40}]"
    return f", at {where.lstrip('.')}" if where else ""


def _can_be_packed(value: Any) -> bool:
    try:
        _Encoder(None).pack(value)
    except (_Unpicklable, *MISFITS):
        return False
    return True


def opaque_notes(data: bytes) -> list[Note]:
    """The types in the encoded ``data`` that only pickle can rebuild, with their nodes, by the head alone."""
    length = int.from_bytes(data[8:_HEAD], "big")
    notes = data[_HEAD : _HEAD + length]
    return [] if notes == _NO_NOTES else [(str(name), str(node)) for name, node in msgpack.unpackb(notes)]


class _Tag:
    """The first element of a list that stands for something else."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code


_READ_TAGS = {code: _Tag(code) for code in _TAGS}


class _Decoder:
    def __init__(self, allow_pickle: bool, keep_opaque: bool) -> None:
        self._allow_pickle = allow_pickle
        self._keep_opaque = keep_opaque
        self._open_tags = 0  # tags read, less those that were the first element of a list
        self._snapshots: list[bytes] = []

    def read(self, data: bytes, depth: int = 0) -> Any:
        """The value that ``data`` encode; the snapshots in its cursors are opened for checking only."""
        if depth > _MAX_SNAPSHOTS_DEEP:
            raise ValueError(f"snapshots nested more than {_MAX_SNAPSHOTS_DEEP} deep")
        length = int.from_bytes(data[8:_HEAD], "big")
        body = memoryview(data)[_HEAD:]
        if zlib.crc32(body, zlib.crc32(data[8:_HEAD])) != int.from_bytes(data[4:8], "big"):
            raise ValueError("the checksum differs: the bytes are not those that were saved")
        if length > len(body):
            raise ValueError("the notes are longer than all there is")
        self._unpack(body[:length])
        value = self._unpack(body[length:])
        if self._open_tags:
            raise ValueError("a tag stands where none belongs")
        snapshots, self._snapshots = self._snapshots, []
        for snapshot in snapshots:
            _check_head(snapshot)
            self.read(snapshot, depth + 1)
        return value

    def _unpack(self, data: memoryview) -> Any:
        # First all is walked through without making anything: after that, no list is longer than its bytes are.
        walker = msgpack.Unpacker(max_buffer_size=max(1, len(data)))
        walker.feed(data)
        walker.skip()
        if walker.tell() != len(data):
            raise ValueError(f"{len(data) - walker.tell()} bytes too many")
        return msgpack.unpackb(
            data,
            ext_hook=self._tag,
            list_hook=self._list,
            strict_map_key=False,
            raw=False,
            unicode_errors="surrogatepass",
            max_str_len=len(data),
            max_bin_len=len(data),
            max_ext_len=len(data),
        )

    def _tag(self, code: int, data: bytes) -> _Tag:
        if data or code not in _READ_TAGS:
            raise ValueError(f"unknown extension type {code}")
        self._open_tags += 1
        return _READ_TAGS[code]

    def _list(self, items: list[Any]) -> Any:
        if not items or type(items[0]) is not _Tag:
            return items
        self._open_tags -= 1
        code = items.pop(0).code
        make = MAKERS.get(code)
        if make is not None:
            return make(items)
        match code:
            case 8:
                return self._opaque(*items)
            case 12:
                return self._cursor(*items)
            case 42:
                return msgpack.ExtType(*items)
            case _ if self._keep_opaque:
                return OpaqueItem(".".join(map(str, items[:2])), 0)
            case _:
                return make_named(items)

    def _cursor(self, snapshot: Any, skip: Any, count: Any, _: Any = None) -> Cursor:  # older states say one thing more
        for number in (skip, count):
            if type(number) is not int or not 0 <= number < _MAX_COUNT:
                raise ValueError("a cursor counts what is no number of items")
        if skip > count or (snapshot is None and skip != count):
            raise ValueError(f"a cursor drops {skip} items to stand after {count}")
        if snapshot is not None:
            if type(snapshot) is not bytes:
                raise ValueError("a cursor's snapshot is not bytes")
            self._snapshots.append(snapshot)
        return Cursor(snapshot, skip, count)

    def _opaque(self, type_name: Any, data: Any) -> Any:
        if type(type_name) is not str or type(data) is not bytes:
            raise ValueError("an opaque item is not bytes with a name")
        if self._keep_opaque:
            return OpaqueItem(type_name, len(data))
        if not self._allow_pickle:
            raise UnsafeStateError(
                f"the state holds a buffered item of type {type_name:.200}, which only pickle can rebuild, and that "
                "runs code. If you trust where the state comes from, load it with allow_pickle=True"
            )
        try:
            return pickle.load(io.BytesIO(data))
        except (ImportError, AttributeError) as error:
            raise StateError(
                f"the state holds a buffered item of type {type_name:.200}, whose class is not there: {error}. Let it "
                "be importable under the name that it had when the state was saved"
            ) from error
        except Exception as error:
            raise StateError(
                f"the state holds a buffered item of type {type_name:.200} that cannot be unpickled here "
                f"({type(error).__name__}: {error})"
            ) from error


def as_text(data: bytes) -> str:
    """Bytes from :func:`encode` as base64, for states that JSON is to hold."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def from_text(text: str) -> bytes:
    """The bytes that :func:`as_text` was given. Raises: StateError for any other text."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # or characters beyond ASCII
        raise StateError(f"the state's text is damaged ({error}). Use an older checkpoint") from None


def _check_head(data: bytes) -> None:
    if data[:3] != _MAGIC or len(data) < 5:
        raise StateError(f"not a torchpipe state: it begins with {data[:16]!r}. Was the file damaged or mixed up?")
    if data[3] != FORMAT_VERSION:
        raise StateError(
            f"the state has format version {data[3]}, this torchpipe reads version {FORMAT_VERSION}: "
            "load it with the version of torchpipe that wrote it"
        )
    if len(data) <= _HEAD:
        raise StateError(f"the state's {len(data)} bytes are damaged: they break off. Use an older checkpoint")


def decode(data: bytes, *, allow_pickle: bool = False, keep_opaque: bool = False) -> Any:
    """Bytes from :func:`encode` -> the data. Runs no code from ``data`` unless ``allow_pickle``.

    The snapshots in cursors stay encoded, and have been opened and checked in the same way. ``keep_opaque`` leaves an
    :class:`OpaqueItem` where an opaque pickle or a value of a user's class stands, for looking at a state.

    Raises: UnsafeStateError for opaque items without ``allow_pickle``; StateError for anything that is not a state,
    and where the class of an item is missing.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise StateError(f"a state must be bytes, got {type(data).__name__}")
    data = bytes(data)
    _check_head(data)
    try:
        return _Decoder(allow_pickle, keep_opaque).read(data)
    except StateError:
        raise
    except ClassMissing as error:
        raise StateError(str(error)) from error
    except (*MISFITS, *_DAMAGE) as error:
        raise StateError(
            f"the state's {len(data)} bytes are damaged ({type(error).__name__}: {error}). Use an older checkpoint"
        ) from error
