"""Which epoch of which run, and on which rank: with the graph, all that a stream depends on.

Runs in every process.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Epoch", "EpochStart", "ShardSpec", "Uneven", "WorkerInfo"]


class Uneven(enum.Enum):
    """What happens when some ranks, or shards, have more items than others."""

    DROP = "drop"
    PAD = "pad"
    RAISE = "raise"


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """An epoch of a run. ``num_shards`` are those of ``rank``; the stream is divided among ``world_size`` ranks."""

    seed: int
    epoch: int
    num_shards: int
    rank: int = 0
    world_size: int = 1

    @property
    def identity(self) -> dict[str, int]:
        """These five by name, to make anything else of this epoch with."""
        return {item.name: getattr(self, item.name) for item in fields(Epoch)}

    def spec(self, shard: int) -> ShardSpec:
        """What the stream of ``shard`` depends on."""
        return ShardSpec(**self.identity, shard=shard)

    @property
    def alone(self) -> ShardSpec:
        """The same of what runs once on this rank: the main section, what is dispatched."""
        return ShardSpec(**(self.identity | {"num_shards": 1}), shard=0)


@dataclass(frozen=True, kw_only=True)
class ShardSpec(Epoch):
    """Which of the ``num_shards`` of the rank.

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
        """What it is by the names that a context has for it."""
        shards = {"shard": self.global_shard, "num_shards": self.total_shards, "local_shard": self.shard}
        return {"seed": self.seed, "epoch": self.epoch, "rank": self.rank, "world_size": self.world_size} | shards

    def describe(self, item: int) -> str:
        """Where in the run item ``item`` of this shard is, for messages."""
        of_rank = f" of rank {self.rank}" if self.world_size > 1 else ""
        return f"item {item} of shard {self.shard} of {self.num_shards}{of_rank}, epoch {self.epoch}"


@dataclass(frozen=True, kw_only=True)
class EpochStart(Epoch):
    """What a service needs to begin an epoch. ``state`` is the main section's state to go on from, or None.

    ``delivered`` items of the epoch are before ``state``. ``hosted``: which of the shards run here; None: all. With
    ``rounds`` DROP or RAISE, they end together, with the last round in which each has an item; RAISE makes an error of
    any that is left. ``seeded``: has the user fixed the seed? ``origin`` names the state that all ranks should have
    loaded, if there is one for all. Without ``in_order``, shards' items come as they are ready.
    """

    delivered: int = 0
    state: dict[str, Any] | None = None
    hosted: range | None = None
    rounds: Uneven | None = None
    seeded: bool = False
    origin: str = ""
    in_order: bool = True

    @property
    def shards(self) -> range:
        """The numbers of the shards that run here."""
        return range(self.num_shards) if self.hosted is None else self.hosted


@dataclass(frozen=True)
class WorkerInfo:
    """What a ``worker_init_fn`` is told: ``num_workers`` is the number of shards and ``worker_id`` the shard's index.

    With the default of one shard a worker these are the worker processes, as in torchdata. A process that hosts several
    shards calls the functions once for each, so that the stream does not depend on the number of processes.
    """

    num_workers: int
    worker_id: int
