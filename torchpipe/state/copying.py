"""Copies of items: for nodes that keep what others hold too, and for states. Runs in every process."""

from __future__ import annotations

import copy
import io
import pathlib
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchpipe.state.pickling import is_made_otherwise, reduce_error
from torchpipe.state.tensors import copy_tensor

__all__ = ["copy_item", "copy_items", "holds_mutable"]

_IMMUTABLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, type(...), pathlib.PosixPath, pathlib.PurePosixPath}
)


def copy_item(item: Any) -> Any:
    """``item``, or a copy of it if it could be changed in place; what cannot be copied (an open file) itself.

    Arrays and tensors are copied alone, also those in deques and objects, where ``copy.deepcopy`` would copy all the
    memory that a view looks into. As in a state, a list that is in an item twice is two lists in the copy.
    """
    try:
        return _copied(item)
    except RecursionError:  # a list that holds itself
        return _deep(item)


def copy_items(items: Iterable[Any]) -> list[Any]:
    """A list of items as :func:`copy_item` makes them."""
    copied = list(items)
    return [copy_item(item) for item in copied] if holds_mutable(copied) else copied


def holds_mutable(items: Iterable[Any]) -> bool:
    """Might one of ``items`` be changed in place? By type: 15 ns an item."""
    return not _IMMUTABLE.issuperset(set(map(type, items)))


def _copied(item: Any) -> Any:
    kind = type(item)
    if kind in _IMMUTABLE:
        return item
    if kind is torch.Tensor and not item.requires_grad:
        return copy_tensor(item)
    if kind is np.ndarray and not item.dtype.hasobject:
        return item.copy()
    if kind is tuple:
        return tuple([_copied(part) for part in item])
    if kind is dict:
        return {key: _copied(value) for key, value in item.items()}
    if kind is list:
        return [_copied(part) for part in item]
    if kind is deque:
        return deque(map(_copied, item), item.maxlen)
    return _deep(item)


def _deep(item: Any) -> Any:
    if callable(getattr(item, "read", None)) and not isinstance(item, io.BytesIO | io.StringIO):
        return item  # an open file, perhaps within other objects, of which a copy would be half made
    try:
        return _error(item) if is_made_otherwise(type(item)) else copy.deepcopy(item, _copied_tensors(item))
    except Exception:  # objects refuse in many ways: TypeError, NotImplementedError, errors of their own
        return item


def _copied_tensors(item: Any) -> dict[int, Any]:
    """Copies of the plain tensors in an object, by their ids, as ``copy.deepcopy`` is to find them."""
    found: dict[int, Any] = {}
    waiting, seen = [item], set[int]()
    while waiting:
        part = waiting.pop()
        if type(part) in _IMMUTABLE or id(part) in seen:
            continue
        seen.add(id(part))
        if type(part) is torch.Tensor:
            if not part.requires_grad:
                found[id(part)] = copy_tensor(part)
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset | deque):
            waiting += part
        elif not isinstance(part, type):
            waiting += getattr(part, "__dict__", {}).values()
    return found


def _error(error: BaseException) -> BaseException:
    """A copy, without the constructor: ``copy.deepcopy`` calls it, and may so make another text."""
    make, (kind, *args), *attributes = reduce_error(error)
    made: BaseException = make(kind, *copy.deepcopy(args))
    for values in attributes:
        vars(made).update(copy.deepcopy(values))
    return made
