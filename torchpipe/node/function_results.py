"""The results of users' functions: the one door at which numbers, keys and answers become Python's own.

A function may return ``np.int64(3)`` or ``torch.tensor(3)`` where 3 is meant. Here it becomes 3, so that what a node
keeps of it can be saved and loaded, and two that are equal are one key of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchpipe.node.traits import callable_name

__all__ = ["as_key", "checked_key", "checked_size", "length_of", "plain", "plain_key"]

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

    Raises: TypeError for what cannot be a key, tensors too, of which no two are one key; ValueError for NaN and NaT,
    which equal nothing, themselves included. The same holds for the parts of a tuple.
    """
    key = plain_key(key_of(item))
    if (reason := _no_key(key)) is not None:
        kind, found = reason
        raise kind(f"{what}: {callable_name(key_of)} gives {found}, for {item!r:.200}: make it a tuple, say, or a text")
    return key


def as_key(value: Any, what: str) -> Any:
    """``value``, a key of ``what``, as :func:`plain_key` makes it. Raises: as :func:`checked_key`."""
    key = plain_key(value)
    if (reason := _no_key(key)) is not None:
        kind, found = reason
        raise kind(f"{what}: a key is one value that others may equal, got {found}")
    return key


def _no_key(key: Any) -> tuple[type[Exception], str] | None:
    """Why no other key equals this one, as an error and what it is; None if it is a key."""
    if isinstance(key, torch.Tensor):
        return TypeError, f"a tensor of shape {tuple(key.shape)}"
    if type(key) is tuple:
        reason = next(filter(None, map(_no_key, key)), None)
        return None if reason is None else (reason[0], f"{reason[1]} in {key!r:.200}")
    try:
        hash(key)
    except TypeError as error:
        return TypeError, f"{key!r:.200}, which is no key ({error})"
    if plain(key != key) is True:
        return ValueError, f"{key!r:.40}, which equals no other key"
    return None
