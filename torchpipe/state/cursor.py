"""Cursors: how everything that runs ahead of its consumer remembers a position.

Runs in every process.

A cursor is a snapshot and the number of items handed out since. Snapshots cost time, so they are taken every so often,
and a restore drops the few items in between. Recovery, checkpoints and pausing all start from cursors.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Cursor", "SnapshotPolicy"]

_KEY = "cursor"  # what makes a state a cursor is the type of what stands there, not this name
_MANY, _NEVER = 1 << 30, 1 << 62  # items
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position: go to ``snapshot`` (an encoded state; None is the start of the epoch) and drop ``skip`` items.

    ``count`` items of the epoch are before the position, if whoever makes the cursor counts them; else it says as many
    as are dropped. The codec keeps cursors as a type of their own, and opens and checks the snapshots in them.
    """

    snapshot: bytes | None = None
    skip: int = 0
    count: int = _UNKNOWN

    def __post_init__(self) -> None:
        if self.count == _UNKNOWN:
            object.__setattr__(self, "count", self.skip)

    def after(self, items: int, snapshot: bytes | None) -> Cursor:
        """The cursor ``items`` later; ``snapshot``, if any, was taken at just that point."""
        if snapshot is not None:
            return Cursor(snapshot, 0, self.count + items)
        return Cursor(self.snapshot, self.skip + items, self.count + items)

    def before(self) -> Cursor:
        """The cursor one item earlier: from its snapshot, or from the start of the epoch if that is behind it."""
        if self.skip:
            return Cursor(self.snapshot, self.skip - 1, self.count - 1)
        return Cursor(None, self.count - 1, self.count - 1)

    def to_state(self) -> dict[str, Any]:
        return {_KEY: self}

    @staticmethod
    def from_state(state: Any) -> Cursor | None:
        """The cursor that ``state`` holds, or None if it is an ordinary state."""
        found = state.get(_KEY) if isinstance(state, dict) else None
        return found if isinstance(found, Cursor) else None


class SnapshotPolicy:
    """Decides when the next snapshot is due, so that taking them costs about ``share`` of the time.

    With ``every=n`` one is due after each n items, whatever it costs (tests use that). The choice never changes the
    stream, only how many items a restore has to drop. Not thread-safe.
    """

    def __init__(self, share: float = 0.01, every: int | None = None) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share}")
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self._share = share
        self._every = every
        self._items = 0
        self._due_at = 0.0  # the first one at once: its cost sets the pace
        self._started_at = 0.0

    @classmethod
    def never(cls) -> SnapshotPolicy:
        """None is ever due: whoever asks keeps the position himself, or reaches it by making everything again."""
        return cls(every=_NEVER)

    def due(self, items: int = 1) -> bool:
        """Count ``items`` more; is a snapshot due after them?"""
        self._items += items
        if self._every is not None:
            return self._items >= self._every
        return time.perf_counter() >= self._due_at

    @property
    def left(self) -> int:
        """At most so many more items until the next snapshot is due."""
        return _MANY if self._every is None else max(1, self._every - self._items)

    def begin(self) -> None:
        self._started_at = time.perf_counter()

    def end(self) -> None:
        """A snapshot was taken (or refused) since :meth:`begin`."""
        now = time.perf_counter()
        self._items = 0
        self._due_at = now + (now - self._started_at) / self._share
