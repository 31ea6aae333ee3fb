"""Looking into a queue that other threads change. Runs wherever somebody asks for figures."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

__all__ = ["listed"]

T = TypeVar("T")


def listed(queue: deque[T]) -> list[T]:
    """The content of ``queue`` at one moment. Any thread, without a lock that its users would have to take.

    On a free-threaded Python, a deque that is changed while it is listed raises RuntimeError; that takes a microsecond,
    so the next try nearly always succeeds.
    """
    while True:
        try:
            return list(queue)
        except RuntimeError:
            continue
