"""Parts of what a test looks through: so that several processes share them, and few run by day."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["parts"]


def parts(count: int, by_day: int) -> list[Any]:
    """Arguments of a test, the numbers of ``count`` parts. ``by_day`` of them run then, whatever they cost."""
    assert count % by_day == 0
    return [pytest.param(part, marks=[] if part % (count // by_day) else [pytest.mark.sample]) for part in range(count)]
