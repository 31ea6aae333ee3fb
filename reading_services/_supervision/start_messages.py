"""The messages that begin an epoch, or begin it anew: made from what the ledgers know. No I/O.

Runs in the main process, in the supervisor's threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reading_services._supervision.ledger import ShardLedger
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.messages import Deal, StartDispatch, StartEpoch
from torchpipe.execution.dispatch import dispatch_start
from torchpipe.execution.epoch import Epoch

__all__ = ["DispatchPart", "deal_again", "start_dispatch", "start_epoch"]


@dataclass(frozen=True, kw_only=True)
class DispatchPart:
    """The dispatched part of a graph: its branch, its image for its process, its nodes' names by their numbers."""

    branch: int
    graph: GraphImage
    node_names: Mapping[int, str]


def deal_again(ledgers: list[ShardLedger], generation: int) -> list[Deal]:
    """For a worker that goes on with the lanes of ``ledgers``: what was dealt to them and may be needed again."""
    hands = [(ledger.lane, ledger.hand) for ledger in ledgers if ledger.hand is not None]
    return [Deal.of(generation, lane, hand.entries, hand.over) for lane, hand in hands]


def start_epoch(
    epoch: Epoch,
    generation: int,
    ledgers: list[ShardLedger],
    *,
    window: int,
    window_bytes: int,
    address: str | None,
    branch: int,
    careful: bool,
    dealt: bool = False,
) -> StartEpoch:
    """For a worker that goes on with the lanes of ``ledgers``; those of ``branch`` get dispatched items."""
    return StartEpoch(
        **epoch.identity,
        generation=generation,
        shards=tuple(ledger.restart() for ledger in ledgers),
        window=window,
        window_bytes=window_bytes,
        dispatch_address=address,
        dispatch_branch=branch,
        careful=careful,
        dealt=dealt,
    )


def start_dispatch(
    epoch: Epoch,
    generation: int,
    ledgers: list[ShardLedger],
    *,
    doubtful: int,
    careful: bool,
    fail_at: tuple[int, bytes] | None,
) -> StartDispatch:
    """For the dispatcher, at the newest mark that serves all the lanes of ``ledgers``."""
    start = dispatch_start({item.shard: item.cursor.snapshot for item in ledgers}, epoch.num_shards)
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
