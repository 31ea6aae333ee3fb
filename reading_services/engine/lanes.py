"""The lanes of an epoch: how far each has come, which worker hosts it, and the messages with which workers begin.

Data and decisions alone: no worker, no clock. Used in the main process, under the supervisor's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from reading_services.engine.ledger import LaneEntries, ShardLedger
from reading_services.engine.messages import Deal, StartDispatch, StartEpoch
from reading_services.engine.workers import DISPATCHER, Arrival, End
from torchpipe.execution.dispatch import dispatch_start
from torchpipe.execution.limits import WorkerLimits
from torchpipe.execution.reading_service import EpochStart
from torchpipe.node.failures import dump_error
from torchpipe.state import Cursor

__all__ = ["Lanes"]


class Lanes:
    """The lanes of the present ``epoch`` (None: there is none), and the hosts of shards, which are kept between epochs.

    ``dispatch_branch``: the branch that dispatched items go to; -1: there are none.
    """

    def __init__(self, num_workers: int, limits: WorkerLimits, dispatch_branch: int) -> None:
        self.num_workers, self.limits = num_workers, limits
        self.dispatched = dispatch_branch >= 0
        self.epoch: EpochStart | None = None
        self.generation = 0  # counts the beginnings
        self.failure: BaseException | None = None  # why no lane goes on
        self._dispatch_branch = dispatch_branch
        self._ledgers: dict[int, ShardLedger] = {}  # by lane
        self._assigned: dict[int, int] = {}  # shard -> the worker that hosts it, where that was decided
        self._isolate_before = 0  # dispatched items before this one are each made alone: one may end the dispatcher
        self._fail_at: tuple[int, bytes] | None = None  # a dispatched item that is not to be tried again, and its error

    def begin_epoch(
        self,
        start: EpochStart,
        cursors: Mapping[int, Cursor],
        entries: Mapping[int, LaneEntries],
        *,
        snapshot_first: bool = False,
    ) -> None:
        """``entries``: of each lane, where what items are made of is dealt."""
        self.generation += 1  # what is still on its way belongs to no lane of this epoch
        self.epoch, self._fail_at, self._isolate_before = start, None, 0
        self._ledgers = {}
        for lane, cursor in cursors.items():
            branch, shard = start.branch_and_shard(lane)
            self._ledgers[lane] = ShardLedger(
                lane=lane,
                branch=branch,
                shard=shard,
                window=self.limits.window,
                cursor=cursor,
                snapshot_first=snapshot_first,
                since=self.generation,
                entries=entries.get(lane),
            )

    def end_epoch(self) -> None:
        """There is no lane any more. Idempotent."""
        self.epoch = None
        self._ledgers = {}

    # --- how far each has come

    def __contains__(self, lane: int) -> bool:
        return lane in self._ledgers

    def __getitem__(self, lane: int) -> ShardLedger:
        return self._ledgers[lane]

    def ledgers(self) -> list[ShardLedger]:
        """The ledgers of all lanes. Any thread."""
        return list(self._ledgers.values())

    def wanted(self, lane: int, generation: int) -> ShardLedger | None:
        """The lane that something of this generation is of, unless it has begun anew since."""
        ledger = self._ledgers.get(lane)
        return ledger if ledger is not None and generation >= ledger.since else None

    def isolate(self, end: End, *, dispatcher: bool) -> None:
        """Let the items that may have caused this end each be made alone from now on."""
        if not end.begun:
            return
        if dispatcher:
            self._isolate_before = max(self._isolate_before, end.items.stop)
        elif end.lane in self._ledgers:
            ledger = self._ledgers[end.lane]
            ledger.isolate_before = max(ledger.isolate_before, end.items.stop)

    def fail_item(self, end: End, error: Exception, *, number: int) -> None:
        """The item that has ended worker ``number`` is not tried again: the error takes its place, or without a
        culprit, that of the next item of every shard of this worker.
        """
        if number == DISPATCHER and end.begun:
            self._fail_at = (end.items[0], dump_error(error))
            return
        for ledger in self.of_worker(number):
            if not ledger.over and (number == DISPATCHER or end.lane in (ledger.lane, -1)):
                ledger.arrive(Arrival(error=error))

    def fail_worker(self, number: int, error: Exception) -> None:
        """The worker is not started again: the error takes the place of the next item of each of its shards."""
        for ledger in self.of_worker(number):
            if not ledger.over:
                ledger.arrive(Arrival(error=error))

    # --- who hosts which

    def numbers(self) -> list[int]:
        """The workers that there should be: the dispatcher first."""
        return ([DISPATCHER] if self.dispatched else []) + list(range(self.num_workers))

    def worker_of(self, shard: int) -> int:
        """The number of the worker that hosts the shard."""
        if (number := self._assigned.get(shard)) is not None:
            return number
        return (0 if self.epoch is None else self.epoch.shards.index(shard)) % self.num_workers

    def of_worker(self, number: int) -> list[ShardLedger]:
        """The lanes that need the worker."""
        ledgers = self._ledgers.values()
        return [item for item in ledgers if number == DISPATCHER or self.worker_of(item.shard) == number]

    def needs(self, number: int) -> bool:
        """True if a lane that goes on needs the worker."""
        return any(not item.over for item in self.of_worker(number))

    def may_need(self, number: int) -> bool:
        """True if the worker hosts nothing just now, and may be given shards again."""
        return not self.of_worker(number) and bool(self._assigned) and any(not it.over for it in self._ledgers.values())

    def hosts(self, *, all_shards: bool = False) -> dict[int, int]:
        """shard -> the worker that hosts it, of the shards that go on, or of all in this epoch."""
        shards = {ledger.shard for ledger in self._ledgers.values() if all_shards or not ledger.over}
        return {shard: self.worker_of(shard) for shard in sorted(shards)}

    def assign(self, hosts: Mapping[int, int]) -> None:
        """Let worker ``hosts[shard]`` host each shard. Also shards that have ended keep their worker: the next epoch
        begins where this one stands.
        """
        self._assigned = self.hosts(all_shards=True) | dict(hosts)

    def set_workers(self, num_workers: int) -> None:
        """So many host the shards, in turn."""
        self.num_workers = num_workers
        self._assigned.clear()

    def set_window(self, window: int) -> None:
        """So far may lanes run ahead."""
        self.limits = replace(self.limits, window=window)
        for ledger in self._ledgers.values():
            ledger.window = window

    # --- how workers begin

    def next_generation(self, kept: Collection[int]) -> None:
        """All lanes begin anew, but for those ``kept``."""
        self.generation += 1
        for ledger in self._ledgers.values():
            if ledger.lane not in kept:
                ledger.since = self.generation

    def start_of(self, number: int, kept: Collection[int], *, isolate_items: bool) -> tuple[StartEpoch, list[Deal]]:
        """The start of a worker, and the entries dealt to it before: it may have to go on after some of those."""
        assert self.epoch is not None
        going_on = [item for item in self.of_worker(number) if not item.over]
        begins = [item for item in going_on if item.lane not in kept]
        deals = [
            Deal.of(self.generation, item.lane, item.entries.waiting, item.entries.over)
            for item in begins
            if item.entries
        ]
        start = StartEpoch(
            **self.epoch.fields,
            generation=self.generation,
            shards=tuple(item.restart() for item in begins),
            keep=tuple(item.lane for item in going_on if item.lane in kept),
            window=self.limits.window,
            window_bytes=self.limits.window_bytes,
            dispatch_branch=self._dispatch_branch,
            isolate_items=isolate_items,
            from_entries=any(item.entries for item in going_on),
        )
        return start, deals

    def dispatcher_start(self, *, isolate_items: bool) -> StartDispatch:
        """The start of the dispatcher: at the newest mark that serves all the shards that go on."""
        assert self.epoch is not None
        ledgers = self._ledgers.values()
        going_on = [item for item in ledgers if item.branch == self._dispatch_branch and not item.over]
        start = dispatch_start({item.shard: item.cursor.snapshot for item in going_on}, self.epoch.num_shards)
        return StartDispatch(
            **self.epoch.fields,
            generation=self.generation,
            mark=start.mark,
            needed=tuple(start.needed.items()),
            isolate_before=self._isolate_before,
            isolate_items=isolate_items,
            fail_at=self._fail_at,
        )
