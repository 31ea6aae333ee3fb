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

from torchpipe.compat.torch_datapipes import DataChunk
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
    content = _content(item)
    if content is not None:
        return (kind, *content) if type(item) in _WITHOUT_STATE else (kind, *content, *_state(item))
    if not isinstance(item, type):
        if callable(getattr(item, "read", None)) and callable(getattr(item, "close", None)):
            read = item.read()
            item.close()
            return "stream", getattr(item, "name", None), read
        if kind.startswith("pyarrow.") and hasattr(item, "to_pylist"):
            return kind, str(getattr(item, "schema", None) or item.type), value_of(item.to_pylist())
        if hasattr(item, "__array_interface__"):
            return kind, value_of(np.asarray(item))  # an image of Pillow's, say: its attributes do not say its pixels
    kept = _kept(item)
    return (kind, item) if kept is None else (kind, value_of(kept))


_WITHOUT_STATE = frozenset(
    (
        *(type(None), bool, int, str, bytes, bytearray, memoryview, float, complex),
        *(list, tuple, dict, set, frozenset, deque, DataChunk, torch.Tensor, np.ndarray),
    )
)
"""Classes whose instances are their content: a class made from one of them may have attributes."""


def _content(item: Any) -> tuple[Any, ...] | None:
    """The content of data, or of an object that holds data, without its attributes; None: it is neither."""
    if item is None or isinstance(item, bool | int | str | bytes):
        return (item,)
    if isinstance(item, bytearray | memoryview):
        return (bytes(item),)
    if isinstance(item, float):
        return (struct.pack("<d", item),)
    if isinstance(item, complex):
        return (struct.pack("<dd", item.real, item.imag),)
    if isinstance(item, torch.Tensor) and is_plain(item := item.detach().cpu().resolve_conj().resolve_neg()):
        return str(item.dtype), tuple(item.shape), bytes_of(item).tobytes()
    if isinstance(item, np.ma.MaskedArray):
        return value_of(item.data), value_of(np.ma.getmaskarray(item))
    if isinstance(item, np.ndarray) and item.dtype.hasobject:
        return str(item.dtype), item.shape, [value_of(part) for part in item.ravel().tolist()]
    if isinstance(item, np.ndarray | np.generic):
        return str(item.dtype), item.shape, item.tobytes()
    if isinstance(item, list | tuple | deque):
        return ([value_of(part) for part in item],)
    if isinstance(item, dict):
        return ([(value_of(key), value_of(value)) for key, value in item.items()],)
    if isinstance(item, set | frozenset):
        return (sorted((value_of(part) for part in item), key=repr),)
    return None


def _state(item: Any) -> list[Any]:
    """The attributes that a class of the user's adds to data; none, or one entry."""
    if isinstance(item, np.ndarray):  # pickle keeps none of theirs
        return []
    if isinstance(item, torch.Tensor):
        found: Any = vars(item)
    else:
        kept = _kept(item)
        found = kept[2] if isinstance(kept, list) and len(kept) > 2 else None
    return [value_of(found)] if found else []


def _kept(item: Any) -> str | list[Any] | None:
    """The part of an object that pickle would keep: a name, or its parts; None if it can keep nothing."""
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
