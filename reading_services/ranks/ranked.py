"""The base of services that divide the stream among ranks: the shards of all ranks, and those that a rank hosts.

Runs in the main process of every rank.

With ``total_shards``, shards belong to no rank, and know nothing of ranks. The stream is that of a single process with
as many shards, whatever the number of ranks. Where that divides the shards, shard i runs on rank i mod w; else several
ranks run the same ones, and take turns at their items. Without it, each rank has shards of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torchpipe.errors import GraphError, SharedShardsWarning
from torchpipe.execution.epoch import EpochStart, Part, Uneven
from torchpipe.execution.preparing import PreparingReadingService
from torchpipe.execution.reading_service import warn_of_replicated
from torchpipe.graph import plan
from torchpipe.graph.plan import total_length
from torchpipe.node.traits import DataPipe, node_name, traits_of
from torchpipe.node.user_warnings import warn_user
from torchpipe.node.validate import check_count
from torchpipe.state.flat import MAX_ALL_SHARDS, MAX_SHARDS

__all__ = ["RankedReadingService"]


class RankedReadingService(PreparingReadingService):
    """Base of services for one of several ranks, which say ``rank`` and ``world_size``.

    ``uneven``: how the shards of a run with ``total_shards`` end; None: each on its own.
    """

    def __init__(self, total_shards: int | None = None, uneven: Uneven | None = None) -> None:
        super().__init__()
        if total_shards is not None:
            total_shards = check_count("total_shards", total_shards, at_least=1, at_most=MAX_ALL_SHARDS)
        self._total_shards = total_shards
        self._uneven = uneven

    @property
    def total_shards(self) -> int | None:
        return self._total_shards

    @property
    def names_ranks(self) -> bool:
        return True

    def check_graph(self, datapipe: DataPipe) -> None:
        """Raises: GraphError if the graph does not divide the stream as it has to; ValueError for ranks that do not."""
        checked, total, world = plan(datapipe), self._total_shards, self.world_size
        if total is None:
            checked.check_num_shards(1, world)
            return
        part = self.part
        if total // part.count > MAX_SHARDS:
            raise ValueError(
                f"total_shards={total} makes {total // part.count} shards on each of {world} ranks, and a rank hosts "
                f"at most {MAX_SHARDS}: use a number of ranks that has more divisors in common with it, or fewer shards"
            )
        if part.turns > 1 and self.rank == 0:
            warn_user(
                f"{world} ranks do not divide total_shards={total}: each shard runs on {part.turns} ranks, which take "
                f"turns at its items, so that a rank makes {part.turns} times the items that it hands out. The stream "
                f"is exact; where making items is costly, run as many ranks as divide {total}, and begin the next run "
                f"with a number of shards that has more divisors (total_shards={math.lcm(world, total)}, say)",
                SharedShardsWarning,
            )
        checked.check_num_shards(total)
        checked.check_shares(total)
        if total > self.default_num_shards:  # else the service that executes says so
            warn_of_replicated(checked, total)
        joining = [
            node for node in checked.main_nodes if traits_of(node).alters_stream and not traits_of(node).one_to_one
        ]
        if joining:
            raise GraphError(
                f"{node_name(joining[0])} runs after the shards, once on each rank, and may join or hold what several "
                "shards give, so that the stream would depend on the number of ranks, which total_shards="
                f"{total} rules out. Put it before to_device(), where it runs within a shard"
            )
        if len(checked.cuts) > 1 and self._uneven not in (Uneven.DROP, Uneven.RAISE):
            raise GraphError(
                f"{len(checked.cuts)} branches meet after the shards, and if shards ended each on its own, other items "
                f"would meet under another number of ranks, which total_shards={total} rules out. Choose "
                'uneven="drop", or let the branches meet within a shard'
            )

    def hosting(self, start: EpochStart) -> EpochStart:
        """The epoch as it runs here: of all shards, those that this rank hosts."""
        total = self._total_shards
        if total is None:
            return start if self._uneven is not Uneven.PAD else replace(start, rounds=self._uneven)
        return replace(start, num_shards=total, rank=0, world_size=1, rounds=self._uneven, part=self.part)

    def length(self, datapipe: DataPipe, num_shards: int) -> int:
        total, world = self._total_shards, self.world_size
        if total is None:
            return super().length(datapipe, num_shards)
        planned = plan(datapipe)
        lengths = [total_length(planned, total, shards=[shard]) for shard in range(total)]
        if self._uneven is Uneven.DROP:
            return min(lengths) * total // world
        parts = [Part.of(rank, world, total) for rank in range(world)]
        return self.agreed_length([part.share(sum(lengths[part.number :: part.count])) for part in parts])
