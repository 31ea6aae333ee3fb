"""No library at all, for P7: one generator function for each stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["identity", "stages"]


def identity(item: Any) -> Any:
    return item


def _stage(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        yield identity(item)


def stages(count: int, number: int) -> Iterable[Any]:
    items: Iterable[Any] = range(count)
    for _ in range(number):
        items = _stage(items)
    return items
