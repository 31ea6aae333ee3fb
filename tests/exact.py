"""What a stream gave, as text for comparing: a tensor's own shows four digits, and of many numbers some."""

from __future__ import annotations

from typing import Any

from torchpipe.testing.compare import value_of

__all__ = ["exact"]


def exact(item: Any) -> str:
    """Equal only for what is bit for bit the same, on whatever device."""
    return repr(value_of(item))
