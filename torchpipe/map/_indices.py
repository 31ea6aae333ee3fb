"""Indices of map-style nodes that are read by index."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["checked_index"]


def checked_index(form: str, index: Any, length: int) -> int:
    """``index`` as a number from 0 on; negative ones count from the end. Raises: TypeError, IndexError."""
    try:
        number = operator.index(index)
    except TypeError:
        raise TypeError(f"{form} (map-style) is read by index, got {index!r} of type {type(index).__name__}") from None
    if not -length <= number < length:
        raise IndexError(f"Index {number} is out of range: {form} has {length} items")
    return number % length
