"""What the processes are told to begin an epoch, or to go on with it, out of what the ledgers know. Pure data.

Runs in the main process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reading_services._supervision.ledger import ShardLedger
from reading_services._supervision.options import WorkerLimits
from reading_services._transport.messages import Deal, StartDispatch, StartEpoch
from torchpipe.execution.dispatch import dispatch_start
from torchpipe.execution.reading_service import EpochStart

__all__ = ["Beginning"]


@dataclass(frozen=True)
class Beginning:
    """``address``: where dispatched items are to be had; they are of branch ``dispatch_branch``."""

    limits: WorkerLimits
    address: str | None
    dispatch_branch: int

    def worker(self, epoch: EpochStart, generation: int, mine: Sequence[ShardLedger], *, careful: bool) -> list[Any]:
        """Messages; ``mine``: the lanes that the worker has."""
        deals = [Deal.of(generation, item.lane, item.hand.entries, item.hand.over) for item in mine if item.hand]
        start = StartEpoch(
            **epoch.identity,
            generation=generation,
            shards=tuple(item.restart() for item in mine),
            window=self.limits.window,
            window_bytes=self.limits.window_bytes,
            dispatch_address=self.address,
            dispatch_branch=self.dispatch_branch,
            careful=careful,
            dealt=bool(deals),
        )
        return [*deals, start]  # what may be needed again first: it may have to go on after some of it

    def dispatcher(
        self,
        epoch: EpochStart,
        generation: int,
        ledgers: Sequence[ShardLedger],
        *,
        doubtful: int,
        careful: bool,
        fail_at: tuple[int, bytes] | None,
    ) -> StartDispatch:
        """At the newest mark that serves all the shards that go on."""
        going_on = [item for item in ledgers if item.branch == self.dispatch_branch and not item.over]
        start = dispatch_start({item.shard: item.cursor.snapshot for item in going_on}, epoch.num_shards)
        return StartDispatch(
            **epoch.identity,
            generation=generation,
            mark_position=start.mark.position,
            mark_snapshot=start.mark.snapshot,
            needed=tuple(start.needed.items()),
            doubtful=doubtful,
            careful=careful,
            fail_at=fail_at,
        )
