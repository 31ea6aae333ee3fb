"""The epoch, its run, and the rank: with the graph, all that a stream depends on.

Runs in every process.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torchpipe.node.ownership import is_strict

__all__ = ["Epoch", "EpochStart", "LeftOver", "Part", "ShardSpec", "Uneven", "WorkerInfo", "no_item"]


class Uneven(enum.Enum):
    """The policy where some ranks, or shards, have more items than others."""

    DROP = "drop"
    PAD = "pad"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class Part:
    """The part of all shards that a rank hosts: every ``count``-th, from number ``number`` on. ``turns`` ranks host the
    same ones, and of their items each has every ``turns``-th, this one from number ``turn`` on.

    With 6 shards on 4 ranks, 2 divides both: ranks 0 and 2 host shards 0, 2 and 4, ranks 1 and 3 the others. Rank 0
    hands out items 0, 4, 8 ... of the stream and rank 2 items 2, 6, 10 ...: in the order of ranks, all are the stream.
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


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """An epoch of a run. ``num_shards`` are those of ``rank``; the stream is divided among ``world_size`` ranks."""

    seed: int
    epoch: int
    num_shards: int
    rank: int = 0
    world_size: int = 1
    strict: bool = field(default_factory=is_strict)  # as the user's process says, also to others, which may be older

    @property
    def identity(self) -> dict[str, int]:
        """The epoch's identity: its fields by name, ``strict`` left out."""
        return {item.name: getattr(self, item.name) for item in fields(Epoch) if item.name != "strict"}

    @property
    def fields(self) -> dict[str, Any]:
        """All of these by name, to make anything else of this epoch with."""
        return self.identity | {"strict": self.strict}

    def spec(self, shard: int) -> ShardSpec:
        """The spec of ``shard``: all that its stream depends on."""
        return ShardSpec(**self.fields, shard=shard)

    def branch_and_shard(self, lane: int) -> tuple[int, int]:
        """The branch and the shard that a lane is."""
        return divmod(lane, self.num_shards)

    @property
    def per_rank(self) -> ShardSpec:
        """The same of what runs once on this rank: the main section, what is dispatched."""
        return ShardSpec(**(self.fields | {"num_shards": 1}), shard=0)


@dataclass(frozen=True, kw_only=True)
class ShardSpec(Epoch):
    """The spec of one of the ``num_shards`` shards of the rank.

    Among the shards of all ranks it has another number, so that a rank's stream is every ``world_size``-th item.
    """

    shard: int

    @property
    def global_shard(self) -> int:
        """The shard's number among those of all ranks."""
        return self.rank + self.world_size * self.shard

    @property
    def total_shards(self) -> int:
        """The number of shards of all ranks."""
        return self.world_size * self.num_shards

    @property
    def in_context(self) -> dict[str, int]:
        """The fields by the names that a context has for them."""
        shards = {"shard": self.global_shard, "num_shards": self.total_shards}
        return {"seed": self.seed, "epoch": self.epoch, "world_size": self.world_size} | shards

    def describe(self, item: int, what: str = "item", part: str = "shard") -> str:
        """The place of item ``item`` of this shard in the run, for messages; no ``part``: there is one alone."""
        of_part = f" of {part} {self.shard} of {self.num_shards}" if part else ""
        of_rank = f" of rank {self.rank}" if self.world_size > 1 else ""
        return f"{what} {item}{of_part}{of_rank}, epoch {self.epoch}"


@dataclass(frozen=True, kw_only=True)
class EpochStart(Epoch):
    """The fields that a service needs to begin an epoch. ``state`` is the main section's state to go on from, or None.

    ``delivered`` items of the epoch are before ``state``. ``part``: which of the shards run here, and which of their
    items are this rank's, if others host the same ones. With ``rounds`` DROP or RAISE, they end together, with the last
    round in which each has an item; RAISE makes an error of any that is left.
    ``seeded``: has the user fixed the seed? ``origin`` names the state that all ranks should have loaded, if there is
    one for all. Without ``in_order``, shards' items come as they are ready.
    """

    delivered: int = 0
    state: dict[str, Any] | None = None
    rounds: Uneven | None = None
    part: Part = field(default_factory=Part)
    seeded: bool = False
    origin: str = ""
    in_order: bool = True

    @property
    def shards(self) -> range:
        """The numbers of the shards that run here."""
        return self.part.shards(self.num_shards)


@dataclass(frozen=True)
class WorkerInfo:
    """The info for a ``worker_init_fn``: ``num_workers`` is the number of shards and ``worker_id`` the shard's index.

    With the default of one shard a worker these are the worker processes, as in torchdata. A process that hosts several
    shards calls the functions once for each, so that the stream does not depend on the number of processes.
    """

    num_workers: int
    worker_id: int


@dataclass(frozen=True, kw_only=True)
class LeftOver:
    """The items left out by an epoch that ended with the first of the ``parts`` (shards of all ranks) that had no more.

    ``by_rank``: how many items of each rank; of one alone, without a number. Unless ``exact``, these are the ones that
    had been made already, and there may be more.
    """

    ended: str  # who had no more
    by_rank: Sequence[int]
    exact: bool
    parts: int
    at: float = field(default_factory=time.time)

    @property
    def items(self) -> int:
        return sum(self.by_rank)

    @property
    def notable(self) -> bool:
        """True if there are more than no division of the stream into equal parts can avoid: one of each part."""
        return not self.exact or self.items > self.parts

    def __str__(self) -> str:
        most = "" if self.exact else "at least "
        ranks = ", ".join(f"rank {rank}: {items}" for rank, items in enumerate(self.by_rank) if items)
        return (
            f'the epoch ended with {self.ended}, which had no more (uneven="drop"), and left out {most}{self.items} '
            f"items of others{f' ({ranks})' if len(self.by_rank) > 1 else ''}"
            f"{'' if self.exact else '; how many more is not known, since they were not made: it may be much'}"
        )


def no_item(who: str, among: str) -> str:
    """The text of an error: the stream is divided among more than it has items for."""
    return (
        f"{who} has no item at all, and an epoch that ends with the first that has no more would have none. The stream "
        f"is divided among {among} where it may have fewer items than that (files, say): use fewer shards, or put "
        "sharding_filter() where there are more items, behind the node that yields rows or lines"
    )
