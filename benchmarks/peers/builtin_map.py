"""No library at all, for P7: the builtin ``map`` for each stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.peers.plain import identity

__all__ = ["stages"]


def stages(count: int, number: int) -> Iterable[Any]:
    items: Iterable[Any] = range(count)
    for _ in range(number):
        items = map(identity, items)
    return items
