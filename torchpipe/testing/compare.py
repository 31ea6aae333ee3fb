"""Items made comparable: equal only if they are bit for bit the same. Runs in the test's process."""

from __future__ import annotations

import pickle
import struct
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from torchpipe.state.tensors import bytes_of

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
    compared by type and attributes.
    """
    text = repr(item)
    return Frozen(value_of(item), text if len(text) <= 200 else text[:197] + "...")


def value_of(item: Any) -> Any:
    """Equal to another's only if both are bit for bit the same; as text, too."""
    kind = f"{type(item).__module__}.{type(item).__qualname__}"
    if item is None or isinstance(item, bool | int | str | bytes):
        return kind, item
    if isinstance(item, bytearray):
        return kind, bytes(item)
    if isinstance(item, float):
        return kind, struct.pack("<d", item)
    if isinstance(item, complex):
        return kind, struct.pack("<dd", item.real, item.imag)
    if isinstance(item, torch.Tensor):
        return kind, str(item.dtype), tuple(item.shape), bytes_of(item.detach().cpu()).tobytes()
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
    if isinstance(item, BaseException):
        return kind, [value_of(part) for part in item.args]
    if callable(getattr(item, "read", None)) and callable(getattr(item, "close", None)):
        content = item.read()
        item.close()
        return "stream", getattr(item, "name", None), content
    if hasattr(item, "__array_interface__"):  # an image of Pillow's, say: its attributes do not say its pixels
        return kind, value_of(np.asarray(item))
    if hasattr(item, "__dict__") and not callable(item):
        return kind, value_of(vars(item))
    return kind, item


def digest_of(item: Any) -> str:
    """16 characters that are the same in every process for items that :func:`freeze` finds equal.

    Of objects that are neither data nor have attributes, the pickle counts; of those without one, the type.
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
        kind = b"p"
        try:
            data = pickle.dumps(value, protocol=4)
        except Exception:  # a lock, an open file
            data = b""
    digest.update(kind + b"%d:" % len(data))
    digest.update(data)
