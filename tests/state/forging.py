"""What a forger of states needs: right checksums, tags, and places to put them. Used by tests alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgpack

from torchpipe.state import FORMAT_VERSION

__all__ = ["TAG_CURSOR", "opened", "opened_deep", "places", "replaced", "sealed", "sealed_deep", "tagged"]

TAG_CURSOR = 12


def sealed(data: bytes, notes: bytes = b"\x90") -> bytes:
    """``data``, which is msgpack, as an encoded state with a right checksum."""
    length = len(notes).to_bytes(4, "big")
    checksum = zlib.crc32(length + notes + data).to_bytes(4, "big")
    return b"TPS" + bytes([FORMAT_VERSION]) + checksum + length + notes + data


def tagged(code: int, *parts: Any) -> bytes:
    """The msgpack of a value that is kept by parts."""
    return bytes(msgpack.packb([msgpack.ExtType(code, b""), *parts]))


def opened(state: bytes) -> Any:
    """The structure inside an encoded state: lists, dicts and tags as msgpack has them."""
    length = int.from_bytes(state[8:12], "big")
    return msgpack.unpackb(state[12 + length :], strict_map_key=False, use_list=True, unicode_errors="surrogatepass",
                           list_hook=_hashable)  # fmt: skip


class _Hashable(list):  # type: ignore[type-arg]
    """A list that may be the key of a dict, as tuples are kept."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(list(self)))


def _hashable(items: list[Any]) -> Any:
    return _Hashable(items)


def opened_deep(state: bytes) -> Any:
    """As :func:`opened`, and the snapshots in cursors are opened too."""
    return _walk(opened(state), lambda snapshot: opened_deep(snapshot))


def sealed_deep(value: Any) -> bytes:
    """The encoded state of a structure from :func:`opened_deep`, every checksum made right."""
    packed = msgpack.packb(_close(value), unicode_errors="surrogatepass")
    return sealed(bytes(packed))


def _is_cursor(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, msgpack.ExtType) and first.code == TAG_CURSOR


class Nested:
    """An opened snapshot in its cursor's place."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _walk(value: Any, open_snapshot: Callable[[bytes], Any]) -> Any:
    if isinstance(value, list):
        if _is_cursor(value) and len(value) > 1 and isinstance(value[1], bytes):
            return [value[0], Nested(open_snapshot(value[1])), *value[2:]]
        return [_walk(item, open_snapshot) for item in value]
    if isinstance(value, dict):
        return {key: _walk(item, open_snapshot) for key, item in value.items()}
    return value


def _close(value: Any) -> Any:
    if isinstance(value, Nested):
        return sealed_deep(value.value)
    if isinstance(value, list):
        return [_close(item) for item in value]
    if isinstance(value, dict):
        return {key: _close(item) for key, item in value.items()}
    return value


def places(value: Any) -> list[tuple[Any, ...]]:
    """The paths to all parts of a structure, the whole included."""
    found: list[tuple[Any, ...]] = [()]
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, Nested):
        inner = [("value", value.value)]
    elif isinstance(value, list):
        inner = list(enumerate(value))
    elif isinstance(value, dict):
        inner = list(value.items())
    for key, item in inner:
        found += [(key, *path) for path in places(item)]
    return found


def part(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value.value if isinstance(value, Nested) else value[key]
    return value


def replaced(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of the structure with ``change`` made to what is at ``path``; what is not on the path is shared."""
    if not path:
        return change(value)
    key, rest = path[0], path[1:]
    if isinstance(value, Nested):
        return Nested(replaced(value.value, rest, change))
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = replaced(copy[key], rest, change)
    return copy
