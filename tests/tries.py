"""How many examples hypothesis tries of what is slow: by night as many as its test says, by day a third of them."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["tries"]


def tries(examples: int) -> int:
    """So many, or, under a profile that tries few, fewer."""
    return max(1, round(examples * min(1.0, settings().max_examples / 30)))
