"""Cursors: how everything that runs ahead of its consumer remembers a position.

Runs in every process.

A cursor is a snapshot and the number of items handed out since. Snapshots cost time, so they are taken every so often,
and a restore drops the few items in between. Recovery, checkpoints and pausing all start from cursors.

A :class:`Rotation` is the position of a merge of shards: a cursor for each, those that go on, and the next one. The
order of a stream is one of rounds: in round k, every shard that still has one gives its k-th item, the lowest number
first. The hosts of shards therefore do not change the order, and a position is the number of items that each shard has
given.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import StateError

__all__ = ["Cursor", "Rotation", "SnapshotPolicy", "turn_of"]

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


def turn_of(counts: Sequence[int], live: Sequence[int]) -> tuple[int, list[int]]:
    """Whose turn it is after ``counts`` items of each shard, as an index into ``live``, and, for each of these, how
    many rounds it sits out because it is ahead.
    """
    least = min((counts[shard] for shard in live), default=0)
    turn = next((index for index, shard in enumerate(live) if counts[shard] == least), 0)
    return turn, [counts[shard] - least - (index < turn) for index, shard in enumerate(live)]


@dataclass(frozen=True, slots=True)
class Rotation:
    """``cursors`` of all shards; those of ``live`` go on, beginning with the one at index ``turn`` among them.

    ``ragged``: some have given more than the rounds say, since ranks stood at different positions: they sit out until
    the others have caught up, and the counts alone say whose turn it is. ``items_behind``: so many items more
    than these shards have those of another rank given, where ranks take equal steps and end with the same round.
    """

    cursors: tuple[Cursor, ...]
    live: tuple[int, ...]
    turn: int = 0
    ragged: bool = False
    items_behind: int = 0

    @classmethod
    def begin(cls, shards: int) -> Rotation:
        """The start of an epoch."""
        return cls((Cursor(),) * shards, tuple(range(shards)))

    @classmethod
    def after(cls, cursors: Iterable[Cursor], live: Iterable[int], items_behind: int = 0) -> Rotation:
        """The rotation of shards that have given the items that their cursors count, each on its own."""
        cursors, live = tuple(cursors), tuple(live)
        turn, ahead = turn_of([cursor.count for cursor in cursors], live)
        return cls(cursors, live, turn, any(ahead), items_behind)

    @property
    def counts(self) -> list[int]:
        """The number of items that each shard has given."""
        return [cursor.count for cursor in self.cursors]

    def before(self, items: int) -> Rotation:
        """The rotation before the last ``items``; a shard with a snapshot behind that begins at the start."""
        cursors, live = list(self.cursors), set(self.live)
        for _ in range(min(items, sum(self.counts))):
            shard = max(range(len(cursors)), key=lambda index: (cursors[index].count, index))
            cursors[shard] = cursors[shard].before()
            live.add(shard)
        return Rotation.after(cursors, sorted(live))

    def without(self, shard: int) -> Rotation:
        """The same when ``shard``, whose turn it is, has no more items."""
        live = tuple(other for other in self.live if other != shard)
        if self.ragged:
            return Rotation.after(self.cursors, live, self.items_behind)
        return replace(self, live=live, turn=self.turn % len(live) if live else 0)

    def for_ranks(self, ranks: int) -> list[Rotation]:
        """The rotation of each of ``ranks``, which hosts every ``ranks``-th shard, numbered anew."""
        counts, alive = self.counts, set(self.live)
        given = [sum(counts[rank::ranks]) for rank in range(ranks)]
        return [
            Rotation.after(
                self.cursors[rank::ranks],
                [index for index, shard in enumerate(range(rank, len(counts), ranks)) if shard in alive],
                max(given) - given[rank],
            )
            for rank in range(ranks)
        ]

    @staticmethod
    def joined(parts: Sequence[Rotation]) -> Rotation:
        """The rotation of all ranks, given in their order; shard j of rank r is number ``r + j * ranks`` among all."""
        ranks = len(parts)
        cursors = [cursor for each in zip(*(part.cursors for part in parts), strict=True) for cursor in each]
        return Rotation.after(
            cursors, sorted(rank + ranks * shard for rank in range(ranks) for shard in parts[rank].live)
        )

    def to_state(self) -> dict[str, Any]:
        """The rotation as plain data."""
        state = {
            "live": list(self.live),
            "turn": self.turn,
            "counts": self.counts,
            "shards": [cursor.to_state() for cursor in self.cursors],
        }
        uneven: dict[str, Any] = {"ragged": True} if self.ragged else {}
        return state | uneven | ({"lag": self.items_behind} if self.items_behind else {})

    @staticmethod
    def is_one(state: Mapping[str, Any]) -> bool:
        """True if ``state`` is what :meth:`to_state` gives, as far as its keys say."""
        return {"live", "turn", "counts", "shards"} <= state.keys()

    @classmethod
    def from_state(cls, state: Mapping[str, Any], shards: int) -> Rotation:
        """The rotation that :meth:`to_state` gave, of so many ``shards``. Raises: StateError for other data."""
        saved, counts, turn = state["shards"], state["counts"], state["turn"]
        if type(saved) is not list or len(saved) != shards:
            had = len(saved) if type(saved) is list else f"{saved!r:.40}"
            raise StateError(f"the state has {had} shards, this loader {shards}")
        cursors = [cursor for item in saved if (cursor := Cursor.from_state(item)) is not None]
        live, ragged, items_behind = state["live"], state.get("ragged", False) is True, state.get("lag", 0)
        sound = (
            type(live) is type(counts) is list
            and len(counts) == len(cursors) == shards
            and all(type(number) is int and number >= 0 for number in (turn, items_behind, *counts))
            and counts == [cursor.count for cursor in cursors]
            and all(type(shard) is int for shard in live)
            and items_behind < 1 << 62
            and live == sorted({shard for shard in live if 0 <= shard < shards})
            and turn < max(1, len(live))
            and (not ragged or turn == turn_of(counts, live)[0])
        )
        if not sound:
            raise StateError(
                f"the state is damaged: of {shards} shards {live!r:.200} go on, beginning with index {turn!r:.40}, "
                f"after {counts!r:.200} items. Use an older checkpoint"
            )
        return cls(tuple(cursors), tuple(live), turn, ragged, items_behind)
