"""Items made comparable: equal only if they are bit for bit the same. Runs in the test's process."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from torchpipe.state.tensors import bytes_of

__all__ = ["Frozen", "freeze", "value_of"]


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
    if hasattr(item, "__dict__") and not callable(item):
        return kind, value_of(vars(item))
    return kind, item
