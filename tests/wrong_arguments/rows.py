"""What a row is: a short id, a call with a wrong argument, what it raises, and the parameter that the message names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

__all__ = ["Row", "calls", "marked"]

Row = tuple[str, Callable[[], Any], type[Exception], str]


def calls(name: str, call: Callable[..., Any], *wrong: tuple[dict[str, Any], type[Exception], str]) -> list[Row]:
    """Rows of one call, with these arguments."""
    return [(f"{name}: {parameter}", partial(call, **options), error, parameter) for options, error, parameter in wrong]


def marked(rows: Iterable[Row], mark: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(*row, marks=mark, id=row[0]) for row in rows]
