"""The length of an item, for nodes that count tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["checked_size", "length_of"]

_TOKENS = ("input_ids", "tokens")


def length_of(item: Any) -> int:
    """``len(item)``; of a dict, that of its field ``input_ids`` or ``tokens``. Raises: TypeError if it has none."""
    if isinstance(item, Mapping):
        item = next((item[name] for name in _TOKENS if name in item), None)
    try:
        return len(item)
    except TypeError:
        found = "a dict without input_ids or tokens" if item is None else f"an item of type {type(item).__name__}"
        raise TypeError(f"{found} has no length: give a function that says how long an item is") from None


def checked_size(size_of: Callable[[Any], Any], item: Any, what: str) -> Any:
    """``size_of(item)``. Raises: ValueError unless it is a number from 0 on; ``what`` is what the number is called."""
    size = size_of(item)
    try:
        if 0 <= size < float("inf"):
            return size
    except TypeError:
        pass
    raise ValueError(f"{what} of an item must be a number from 0 on, got {size!r:.60} of type {type(size).__name__}")
