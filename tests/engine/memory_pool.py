"""A pool of workers in memory: shards run in this thread, in an order that a test draws. What they send may be lost.

``MemoryReadingService`` is ``MultiProcessingReadingService`` on them, so that a whole loader runs on the engine.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reading_services import MultiProcessingReadingService
from reading_services.engine.messages import Deal, Notice, StartDispatch, StartEpoch
from reading_services.engine.policy import Policy
from reading_services.engine.supervisor import Supervisor
from reading_services.engine.workers import (
    DISPATCHER,
    Arrival,
    ChunkArrived,
    End,
    Event,
    Gone,
    Late,
    Leaving,
    NoRoomHere,
    Ready,
    Reported,
    Worker,
    WorkerCounters,
    WorkerPool,
)
from reading_services.hosting.dispatch import DispatchHost
from reading_services.hosting.shards import ShardHost, Supply, dump_items, load_items
from reading_services.hosting.supplies import EntrySupply
from torchpipe.execution.dispatch import Entry
from torchpipe.node.host import Trace
from torchpipe.state import SnapshotPolicy
from torchpipe.stats.sheet import MAKING, Times

__all__ = ["NEVER", "MemoryPool", "MemoryReadingService", "MemoryWorker"]

NEVER = 1e12
_PLACEMENT_S = 2.0
_IDLE = 5_000  # waits in which nothing happens: then the engine waits for ever


class _ProgressNote:
    def __init__(self) -> None:
        self.lane, self.items, self.begun = -1, range(1), False

    def skipping_to(self, lane: int, index: int) -> None:
        self.lane, self.items, self.begun = lane, range(index, index + 1), False

    def making(self, lane: int, index: int, count: int) -> int:
        self.lane, self.items, self.begun = lane, range(index, index + count), True
        return count

    def remade(self) -> None:
        pass

    def idle(self) -> None:
        self.lane = -1

    def trace(self, *, note_steps: bool) -> Trace | None:
        return None


class MemoryWorker:
    """What it has sent and nobody has had yet is in ``sent``; ``inbox``: what it has been told and has not read."""

    def __init__(self, number: int, pool: MemoryPool) -> None:
        self.number, self.name, self.ready = number, "dispatcher" if number < 0 else f"worker {number}", False
        self.sent: deque[Event] = deque()
        self.alive, self.leaving = True, False
        self.pinned = number in pool.elsewhere and number not in pool.without_room
        self.starts_s = (pool.elsewhere if number in pool.without_room else pool.starts).get(number, 0.0)
        pool.without_room.discard(number)
        self.progress = _ProgressNote()
        self._pool = pool
        self.opened_at, self.speed = pool.now, pool.speeds.get(number, 1.0)
        self._times = Times()
        self._pid = 1000 + next(pool.opened)
        self._inbox: deque[Any] = deque()
        self._credit: dict[int, int] = {}  # chunks that a lane may send
        parts: Any = pool.parts
        self.host: ShardHost | None = None
        self.dispatch: DispatchHost | None = None
        if number == DISPATCHER:
            self.dispatch = DispatchHost(pool.dispatched, pool.policy, self.progress, "in memory")
        else:
            self.host = ShardHost(*parts, pool.policy, self.progress)

    def begin(self, start: StartEpoch | StartDispatch, deals: Sequence[Deal] = ()) -> None:
        self._inbox.append((start, deals))

    def grant(self, generation: int, lane: int, chunks: int) -> None:
        self._inbox.append(("grant", generation, lane, chunks))

    def deal(self, message: Deal) -> None:
        self._inbox.append(message)

    def end(self, generation: int) -> None:
        self._inbox.append(("end", generation))

    def counters(self) -> WorkerCounters | None:
        return (
            WorkerCounters(Times(list(self._times.spent), made=self._times.made), pid=self._pid) if self.ready else None
        )

    def step(self) -> bool:
        """Do something: read a message, or make a chunk. Is there anything to do?"""
        if not self.alive or not self.ready:
            return False
        try:
            return self._step()
        finally:
            if self.host is not None:
                self.host.leave()

    def _step(self) -> bool:
        if self._inbox:
            if not self._waits():
                self._read(self._inbox.popleft())
                return True
            return False
        host = self.host
        lanes = [] if host is None else [lane for lane in host.lanes if self._may_send(lane)]
        if host is None or not lanes:
            return False
        self._make(host, self._pool.chance.choice(lanes))
        return True

    def _waits(self) -> bool:
        """Is what it is to begin to have items of a dispatcher that is not so far yet?"""
        start = self._inbox[0][0] if isinstance(self._inbox[0], tuple) else None
        later = any(isinstance(item, tuple) and isinstance(item[0], StartEpoch) for item in list(self._inbox)[1:])
        if not isinstance(start, StartEpoch) or start.dispatch_branch < 0 or later:
            return False
        dispatcher = self._pool.open_workers.get(DISPATCHER)
        host = None if dispatcher is None else dispatcher.dispatch
        return host is None or host.epoch is None or host.epoch.generation < start.generation

    def _may_send(self, lane: int) -> bool:
        assert self.host is not None
        supply = self.host.supply
        if isinstance(supply, EntrySupply) and not supply.left(lane):
            return False
        return self._credit.get(lane, 0) > 0

    def _read(self, message: Any) -> None:
        match message:
            case StartDispatch() as start, _:
                assert self.dispatch is not None
                self.dispatch.begin(start)
            case StartEpoch() as start, deals:
                self._begin(start, deals)
            case "grant", generation, lane, chunks:
                epoch = None if self.host is None else self.host.epoch
                if epoch is not None and epoch.generation == generation and lane in self._credit:
                    self._credit[lane] += chunks
            case "end", _:
                (self.host or self.dispatch).end()  # type: ignore[union-attr]
            case Deal() as deal:
                assert self.host is not None
                if isinstance(self.host.supply, EntrySupply):
                    self.host.supply.add(deal)

    def _begin(self, start: StartEpoch, deals: Sequence[Deal]) -> None:
        assert self.host is not None
        supply: Supply | None = None
        if start.from_entries:
            present = self.host.supply
            supply = dealt = present if start.keep and isinstance(present, EntrySupply) else EntrySupply()
            dealt.keep(start.keep)
            for deal in deals:
                dealt.add(deal)
        elif start.dispatch_branch >= 0:
            supply = _MemorySupply(self._pool, start.generation)
        self.host.begin(start, supply)
        kept = {lane: credit for lane, credit in self._credit.items() if lane in start.keep}
        self._credit = kept | {item.lane: start.window - item.held for item in start.shards}
        for item in start.shards:
            self._pool.begun.append(item.lane)
            try:
                failed = self.host.start(item)
            except _Starved:  # it has no dispatcher to skip items of: there will be another generation
                return
            if failed is not None:
                self._send(start, item.lane, failed)

    def _make(self, host: ShardHost, lane: int) -> None:
        epoch, chance = host.epoch, self._pool.chance
        assert epoch is not None
        try:
            chunk = host.produce(lane, chance.randint(1, 4), 1.0)
        except _Starved:
            return
        except SystemExit:
            self.die(self.progress)
            return
        self._credit[lane] -= 1
        self._times.made += len(chunk.items)
        self._times.spent[MAKING] += int(len(chunk.items) * 1e9 / self.speed)
        for report in host.take_reports():
            if not isinstance(report, Notice):
                self.sent.append(Reported(self, report))
        over = chunk.ended or chunk.error is not None
        self._send(epoch, lane, chunk)
        if over:
            host.retire(lane)

    def die(self, progress: _ProgressNote) -> None:
        """A function of the user's has ended the worker."""
        self.alive = False
        cause = "exited with code 1" if self._pool.own else "was killed by SIGKILL (signal 9)"
        end = End(cause=cause, own=self._pool.own, lane=progress.lane, items=progress.items, begun=progress.begun)
        self.sent.append(Gone(self, end))

    def _send(self, epoch: StartEpoch, lane: int, chunk: Any) -> None:
        items = load_items(*dump_items(chunk.items))
        arrival = Arrival(items=items, snapshot=chunk.snapshot, ended=chunk.ended, error=chunk.error, count=len(items))
        self.sent.append(ChunkArrived(self, epoch.generation, lane, arrival))


class _Starved(BaseException):
    """There is no dispatcher now that serves this generation."""


class _MemorySupply(Supply):
    """Asks the dispatcher directly. Once it has no answer, its shards make nothing more: they begin anew."""

    def __init__(self, pool: MemoryPool, generation: int) -> None:
        self._pool, self._generation, self._starved = pool, generation, False

    def check(self) -> None:
        if self._starved:
            raise _Starved

    def take(self, shard: int) -> Entry | None:
        self.check()
        dispatcher = self._pool.open_workers.get(DISPATCHER)
        host = None if dispatcher is None or not dispatcher.alive else dispatcher.dispatch
        if host is None or host.epoch is None or host.epoch.generation != self._generation:
            self._starved = True
            raise _Starved
        try:
            while not host.has(shard):
                host.produce()
        except SystemExit:
            assert dispatcher is not None
            dispatcher.die(dispatcher.progress)
            self._starved = True
            raise _Starved from None
        portion = host.take(shard, 1)
        if not portion.entries:
            if portion.error is not None:
                raise portion.error
            return None
        waiting = host.waiting(shard)
        waiting.extendleft(reversed(portion.entries[1:]))
        (entry,) = load_items(*dump_items(portion.entries[:1]))
        return entry  # type: ignore[no-any-return]


class MemoryPool(WorkerPool):
    """``chance`` decides who does what next, and what of it arrives. ``now`` is the engine's clock.

    ``starts``: how long after it was opened a worker can begin, by number, in seconds; one that has not after
    ``start_timeout_s`` is late. ``speeds``: items a second that a worker notes, by number. ``step_s``: how
    long a wait takes in which something happens. ``room``: so many can be open at a time, whatever their numbers.
    ``elsewhere``: the numbers of those that have no room where they are put, and how long they take once they are
    opened anew.
    """

    def __init__(
        self,
        parts: Any,
        dispatched: Any,
        policy: Callable[[], SnapshotPolicy],
        chance: random.Random,
        *,
        starts: Mapping[int, float] | None = None,
        speeds: Mapping[int, float] | None = None,
        start_timeout_s: float = NEVER,
        step_s: float = 0.001,
        room: int | None = None,
        elsewhere: Mapping[int, float] | None = None,
    ) -> None:
        self.room, self.elsewhere = room, dict(elsewhere or {})
        self.starts, self.speeds, self.start_timeout_s = dict(starts or {}), dict(speeds or {}), start_timeout_s
        self.parts, self.dispatched, self.policy, self.chance = parts, dispatched, policy, chance
        self.now = 0.0
        self.step_s = step_s
        self.open_workers: dict[int, MemoryWorker] = {}
        self.successors: dict[int, MemoryWorker] = {}  # of workers that are leaving
        self.opened = itertools.count()
        self.closed = False
        self.without_room: set[int] = set()
        self.refusals = 0
        self.begun: list[int] = []  # lanes, each time one begins
        self.own = True  # is a death by a function of the user's one that looks like its own?
        self._idle = 0

    def clock(self) -> float:
        return self.now

    def open(self, number: int) -> Worker:
        assert not self.closed
        if self.room is not None and len(self.open_workers) >= self.room:
            self.refusals += 1
            raise OSError(errno.EMFILE, "Too many open files")
        worker = MemoryWorker(number, self)
        if number in self.open_workers:
            assert self.open_workers[number].leaving
            assert number not in self.successors
            self.successors[number] = worker
        else:
            self.open_workers[number] = worker
        return worker

    def wait(self, timeout_s: float) -> list[Event]:
        workers = [*self.open_workers.values(), *self.successors.values()]
        for worker in workers:
            since = self.now - worker.opened_at
            if not worker.alive or worker.ready:
                continue
            if worker.pinned and since >= _PLACEMENT_S:
                worker.pinned = False
                self.without_room.add(worker.number)
                worker.sent.append(NoRoomHere(worker))
            elif since >= worker.starts_s and self.chance.random() < 0.5:
                worker.ready = True
                worker.sent.append(Ready(worker))
            elif since >= self.start_timeout_s and Late(worker) not in worker.sent:
                worker.sent.append(Late(worker))
        worked = [self.chance.choice(workers).step() for _ in range(self.chance.randint(0, 3)) if workers]
        events = [event for worker in workers for event in self._some_of(worker)]
        self.now += timeout_s if not any(worked) and not events else self.step_s
        told = [event for event in events if not isinstance(event, Late)]
        self._idle = 0 if any(worked) or told else self._idle + 1
        assert self._idle < _IDLE, "the engine waits for ever"
        return events

    def _some_of(self, worker: MemoryWorker) -> list[Event]:
        return [worker.sent.popleft() for _ in range(self.chance.randint(0, len(worker.sent)))]

    def kill(self, number: int, *, own: bool, begun: bool) -> None:
        """End a worker; some of what it had sent still arrives."""
        worker = self.open_workers.get(number)
        if worker is None or not worker.alive:
            return
        worker.alive = False
        for _ in range(self.chance.randint(0, len(worker.sent))):
            worker.sent.pop()
        lane, items = -1, range(1)
        if begun and worker.host is not None and worker.host.lanes:
            lane = self.chance.choice(worker.host.lanes)
            items = _next(worker.host._lanes[lane].shard.produced)
        elif begun and worker.dispatch is not None and worker.dispatch._source is not None:
            lane, items = 0, _next(worker.dispatch._source.position)
        cause = "exited with code 1" if own else "was killed by SIGKILL (signal 9)"
        worker.sent.append(Gone(worker, End(cause=cause, own=own, lane=lane, items=items, begun=lane >= 0)))

    def leave(self, number: int) -> None:
        """Say that a worker will end soon."""
        worker = self.open_workers.get(number)
        if worker is not None and worker.alive and not worker.leaving:
            worker.leaving = True
            worker.sent.append(Leaving(worker))

    def drop(self, worker: Worker) -> None:
        assert isinstance(worker, MemoryWorker)
        for workers in (self.open_workers, self.successors):
            if workers.get(worker.number) is worker:
                del workers[worker.number]
        if worker.number in self.successors and worker.number not in self.open_workers:
            self.open_workers[worker.number] = self.successors.pop(worker.number)
        worker.alive = False
        host = worker.host or worker.dispatch
        assert host is not None
        host.end()

    def pending(self, worker: Worker) -> list[Event]:
        assert isinstance(worker, MemoryWorker)
        events = list(worker.sent)
        worker.sent.clear()
        return events

    def wake(self) -> None:
        pass

    def measure_nodes(self, wanted: bool) -> None:
        pass

    def close(self) -> None:
        self.closed = True
        for worker in list(self.open_workers.values()):
            self.drop(worker)


def _next(item: int) -> range:
    return range(item, item + 1)


class MemoryReadingService(MultiProcessingReadingService):
    """Its workers are objects in ``pool``; ``workers`` is what decides for them."""

    def __init__(
        self,
        num_workers: int,
        chance: random.Random,
        *,
        policies: Sequence[Policy] = (),
        of_pool: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_workers, "fork", main_prefetch_cnt=0, **options)
        self._policies, self._of_pool = policies, of_pool or {}
        self._chance = chance
        self.pool: MemoryPool | None = None
        self.workers: Supervisor | None = None

    def _make_images(self) -> tuple[Any, Any]:
        return None, None

    def _new_workers(self, most: int) -> tuple[Any, Supervisor]:
        parts = (self._graphs.branches, self._init_fn, self._reset_fn)
        self.pool = MemoryPool(parts, self.plan.dispatch, self._policy, self._chance, **self._of_pool)
        branch = -1 if self.plan.dispatch is None else self.plan.dispatch_branch
        self.workers = Supervisor(
            self.pool,
            most,
            self._limits,
            self._policies,
            dispatch_branch=branch,
            restarts=self._earlier_restarts,
            clock=self.pool.clock,
        )
        return None, self.workers  # no processes
