"""Items made comparable: equal only if they are bit for bit the same. Runs in the test's process."""

from __future__ import annotations

import copyreg
import struct
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from torchpipe.state.tensors import bytes_of, is_plain

__all__ = ["Frozen", "digest_of", "freeze", "value_of"]


@dataclass(frozen=True)
class Frozen:
    """One item, taken down: ``value`` decides equality, ``text`` is for people."""

    value: Any
    text: str = field(compare=False)

    def __repr__(self) -> str:
        return self.text


def freeze(item: Any) -> Frozen:
    """Take down an item as it is now. An open stream is read to its end and closed: its content is compared.

    Types, dtypes, shapes and bytes count: 1, True and 1.0 differ, a NaN equals a NaN of the same bits. Objects are
    compared by type and by what pickle would keep of them, Arrow's by their schema and rows: pickle may keep other
    buffers of the same rows.
    """
    text = repr(item)
    return Frozen(value_of(item), text if len(text) <= 200 else text[:197] + "...")


def value_of(item: Any) -> Any:
    """Equal to another's only if both are bit for bit the same; as text, too.

    What is no data counts as what pickle would keep of it. Of what pickle keeps nothing of (a lock, a generator, a
    lambda) each one equals itself alone.
    """
    kind = _name(type(item))
    if item is None or isinstance(item, bool | int | str | bytes):
        return kind, item
    if isinstance(item, bytearray | memoryview):
        return kind, bytes(item)
    if isinstance(item, float):
        return kind, struct.pack("<d", item)
    if isinstance(item, complex):
        return kind, struct.pack("<dd", item.real, item.imag)
    if isinstance(item, torch.Tensor) and is_plain(item := item.detach().cpu().resolve_conj().resolve_neg()):
        return kind, str(item.dtype), tuple(item.shape), bytes_of(item).tobytes()
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        return kind, str(item.dtype), item.shape, [value_of(part) for part in item.ravel().tolist()]
    if isinstance(item, np.ndarray | np.generic):
        return kind, str(item.dtype), item.shape, item.tobytes()
    if isinstance(item, list | tuple | deque):
        return kind, [value_of(part) for part in item]
    if isinstance(item, dict):
        return kind, [(value_of(key), value_of(value)) for key, value in item.items()]
    if isinstance(item, set | frozenset):
        return kind, sorted((value_of(part) for part in item), key=repr)
    if callable(getattr(item, "read", None)) and callable(getattr(item, "close", None)):
        content = item.read()
        item.close()
        return "stream", getattr(item, "name", None), content
    if kind.startswith("pyarrow.") and hasattr(item, "to_pylist"):
        return kind, str(getattr(item, "schema", None) or item.type), value_of(item.to_pylist())
    if hasattr(item, "__array_interface__"):  # an image of Pillow's, say: its attributes do not say its pixels
        return kind, value_of(np.asarray(item))
    kept = _kept(item)
    return (kind, item) if kept is None else (kind, value_of(kept))


def _kept(item: Any) -> str | list[Any] | None:
    """What pickle would keep of an object: a name, or its parts; None if it can keep nothing."""
    if isinstance(item, type | FunctionType | BuiltinFunctionType):
        found: Any = sys.modules.get(item.__module__ or "")
        for name in item.__qualname__.split("."):
            found = getattr(found, name, None)
        return _name(item) if found is item else None
    registered = copyreg.dispatch_table.get(type(item))
    try:
        kept = registered(item) if registered else item.__reduce_ex__(4)
    except Exception:
        return None
    return kept if isinstance(kept, str) else [list(part) if isinstance(part, Iterator) else part for part in kept]


def _name(item: Any) -> str:
    return f"{item.__module__}.{item.__qualname__}"


def digest_of(item: Any) -> str:
    """16 characters that are the same in every process for items that :func:`freeze` finds equal.

    Raises: TypeError for what holds an object of which pickle can keep nothing: it has no content to be compared.
    """
    digest = blake2b(digest_size=8)
    _feed(digest, value_of(item))
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, list | tuple):
        digest.update(b"(%d" % len(value))
        for part in value:
            _feed(digest, part)
        return
    if isinstance(value, bytes):
        data, kind = value, b"b"
    elif value is None or isinstance(value, bool | int | str):
        data, kind = repr(value).encode("utf-8", "surrogatepass"), b"r"
    else:
        raise TypeError(f"{_name(type(value))} has no content that could be compared")
    digest.update(kind + b"%d:" % len(data))
    digest.update(data)
