"""The part of all shards that a rank hosts: any number of ranks, of any number of shards.

Runs in the main process of every rank. With 6 shards on 4 ranks, 2 divides both: ranks 0 and 2 host shards 0, 2 and 4,
ranks 1 and 3 the others. Rank 0 makes the items 0, 2, 4, 6 ... of the stream, and so does rank 2: rank 0 hands out
0, 4, 8 ..., rank 2 hands out 2, 6, 10 ... So the ranks' items, in the order of ranks, are the stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """A rank hosts every ``count``-th shard, from number ``number`` on. ``turns`` ranks host the same ones, and of
    their items each has every ``turns``-th, this one from number ``turn`` on.
    """

    number: int = 0
    count: int = 1
    turn: int = 0
    turns: int = 1

    @classmethod
    def of(cls, rank: int, ranks: int, total: int | None) -> Part:
        """That of ``rank``, where all ``ranks`` have ``total`` shards; None: each has shards of its own."""
        count = ranks if total is None else math.gcd(ranks, total)
        return cls(rank % count, count, rank // count, ranks // count)

    def shards(self, total: int) -> range:
        """The numbers of those of ``total`` shards that it hosts."""
        return range(self.number, total, self.count)

    def share(self, items: int) -> int:
        """The number of the next ``items`` of the shards that are this rank's, where it is the first one's turn."""
        return max(0, -(-(items - self.turn) // self.turns))
