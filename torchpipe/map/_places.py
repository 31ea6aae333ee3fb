"""Places in map-style nodes that are read by index."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["place_of"]


def place_of(form: str, index: Any, length: int) -> int:
    """``index`` as a place from 0 on; negative ones count from the end. Raises: TypeError, IndexError."""
    try:
        place = operator.index(index)
    except TypeError:
        raise TypeError(f"{form} (map-style) is read by index, got {index!r} of type {type(index).__name__}") from None
    if not -length <= place < length:
        raise IndexError(f"Index {place} is out of range: {form} has {length} items")
    return place % length
