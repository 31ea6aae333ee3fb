"""What users' functions return: the one door at which numbers, keys and answers become Python's own.

A function may return ``np.int64(3)`` or ``torch.tensor(3)`` where 3 is meant. Here it becomes 3, so that what a node
keeps of it can be saved and loaded, and two that are equal are one key of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.node.traits import callable_name

__all__ = ["checked_key", "checked_size", "length_of", "plain", "plain_key"]

_TOKENS = ("input_ids", "tokens")
_ONES = frozenset("biufSU")  # the kinds of numpy's scalars that are Python's as well


def length_of(item: Any) -> int:
    """``len(item)``; of a dict, that of its field ``input_ids`` or ``tokens``. Raises: TypeError if it has none."""
    if isinstance(item, Mapping):
        item = next((item[name] for name in _TOKENS if name in item), None)
    try:
        return len(item)
    except TypeError:
        found = "a dict without input_ids or tokens" if item is None else f"an item of type {type(item).__name__}"
        raise TypeError(f"{found} has no length: give a function that says how long an item is") from None


def plain(value: Any) -> Any:
    """``value``; a number, text or truth value of numpy's, and an array or tensor of no dimension, as Python's own."""
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in _ONES else value
    if isinstance(value, torch.Tensor):
        return value.item() if not value.ndim else value
    if isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in _ONES:
        return value.item()
    return value


def checked_size(size_of: Callable[[Any], Any], item: Any, what: str) -> int | float:
    """``size_of(item)``, as Python's own number. Raises: ValueError unless it is one from 0 on; ``what`` is what the
    number is called."""
    size = plain(size_of(item))
    if type(size) in (int, float) and 0 <= size < float("inf"):
        return size  # type: ignore[no-any-return]
    hint = ""
    if type(size) is bool:
        hint = ": is a comparison there by mistake?"
    elif isinstance(size, torch.Tensor | np.ndarray):
        hint = f" and shape {tuple(size.shape)}: take one number of it, by .item() or len()"
    raise ValueError(
        f"{what} of an item must be a number from 0 on, {callable_name(size_of)} returned {size!r:.60} of type "
        f"{type(size).__name__}{hint}"
    )


def plain_key(value: Any) -> Any:
    """``value`` as a key: also within tuples, :func:`plain`."""
    if type(value) is tuple:
        return tuple(map(plain_key, value))
    return plain(value)


def checked_key(key_of: Callable[[Any], Any], item: Any, what: str) -> Any:
    """``key_of(item)``, as :func:`plain_key` makes it.

    Raises: TypeError for what cannot be a key, tensors too, of which no two are one key; ValueError for NaN, which
    equals nothing, itself included.
    """
    key = plain_key(key_of(item))
    advice = "make it a tuple, say, or a text"
    if isinstance(key, torch.Tensor):
        raise TypeError(f"{what}: {callable_name(key_of)} gives a tensor of shape {tuple(key.shape)}: {advice}")
    try:
        hash(key)
    except TypeError as error:
        error.add_note(f"{what}: {callable_name(key_of)} gives {key!r:.200} for {item!r:.200}: {advice}")
        raise
    if isinstance(key, float) and key != key:
        raise ValueError(f"{what}: {callable_name(key_of)} gives NaN, which equals no other key, for {item!r:.200}")
    return key
