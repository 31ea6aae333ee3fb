"""Numbers that users give, to stand in columns and arrays: which types hold them as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchpipe.node.function_results import plain

__all__ = ["given_number", "holds"]


def given_number(what: str, value: Any) -> Any:
    """``value`` as Python's own number. Raises: TypeError for other things."""
    number = plain(value)
    if type(number) not in (bool, int, float, complex):
        raise TypeError(f"{what} must be a number, got {value!r:.60} of type {type(value).__name__}")
    return number


def holds(dtype: np.dtype[Any], number: Any) -> bool:
    """True if ``dtype`` holds ``number``; a float type rounds, and is told so by its name."""
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return bool(
            type(number) is not complex
            and number == number
            and bounds.min <= number <= bounds.max
            and number == int(number)
        )
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        return bool(
            type(number) is not complex and (number != number or abs(number) == float("inf") or abs(number) <= largest)
        )
    return True
