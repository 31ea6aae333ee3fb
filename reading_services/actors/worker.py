"""An actor as the driver sees it: the calls that are on their way, in their order, and the credit of its lanes.

Credit is the number of calls for a chunk: the actor makes what it is asked for and no more. Items of a chunk are
in the driver when the call has its answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskCancelledError,
)

import torchpipe
from reading_services.actors.cluster import living_nodes
from reading_services.actors.replies import Begun, Hello, Produced, Status, arrival_of
from reading_services.engine.credit import ChunkSize, Credit
from reading_services.engine.messages import Deal, Report, StartDispatch, StartEpoch
from reading_services.engine.workers import ChunkArrived, End, Event, Failed, Gone, Ready, Reported, WorkerCounters
from torchpipe.node.failures import load_error
from torchpipe.stats.sheet import Times

__all__ = ["ActorWorker"]

_MOST_CALLS = 4  # of a lane: enough to keep the actor and the way between busy
_CHUNK_SIZE = ChunkSize(nbytes=8 << 20, pickle_bytes=4 << 20)
_PARTS = 16  # in which the items before ``isolate_before`` are made
_CHUNK_S = 0.02  # no further item is begun after this
_HUNGRY_S = 0.002  # the same, if the consumer has used up all

_Kind = Literal["load", "begin", "produce"]


@dataclass(slots=True)
class _Call:
    kind: _Kind
    future: Future[Any]
    lane: int = -1
    limit: int = 1


@dataclass(slots=True)
class _Lane:
    credit: Credit
    since: int  # the generation in which it began here
    count: int  # items of the shard before the next chunk
    isolate_before: int  # one of those before this one may have ended an actor
    last: int = 1  # items of the last chunk
    calls: int = 0  # on their way
    pending: deque[bytes] = field(default_factory=deque)  # entries that are dealt and not sent yet
    sent: int = 0  # entries that the actor has and has not made items of
    over: bool = False  # True if there are no more entries
    end_sent: bool = False
    done: bool = False


class ActorWorker:
    """``watch(number, future)`` lets the driver's wait see the answer; ``dispatcher()``: the actor to ask for items."""

    def __init__(
        self,
        number: int,
        name: str,
        actor: Any,
        watch: Callable[[int, Future[Any]], None],
        dispatcher: Callable[[], Any],
    ) -> None:
        self.number, self.name, self.ready, self.actor = number, name, False, actor
        self.hello: Hello | None = None
        self.opened_at = time.monotonic()
        self.gone = self.leaving = False
        self.pinned = False  # may it run on one node alone?
        self.dispatches = False  # True once it has begun to run the dispatched part
        self.asked: Future[Any] | None = None  # how it is
        self.asked_at = 0.0
        self._at = -1  # the item of the dispatched stream that it is about to make, where it announces each
        self._announces = self._measures_nodes = False
        self._watch, self._dispatcher = watch, dispatcher
        self._nodes = living_nodes()  # when it was opened
        self._calls: deque[_Call] = deque()
        self._epoch: StartEpoch | None = None
        self._generation = 0
        self._lanes: dict[int, _Lane] = {}
        self._turns: deque[int] = deque()
        self._counters: WorkerCounters | None = None

    # --- what the engine tells it

    def load(self, image: Any, measures_nodes: bool) -> None:
        """Send what it is to run. Ready follows, or Failed."""
        self._call("load", self.actor.load, image, measures_nodes)

    def begin(self, start: StartEpoch | StartDispatch, deals: Sequence[Deal] = ()) -> None:
        if self.gone:
            return
        self._generation = start.generation
        keep = () if isinstance(start, StartDispatch) else start.keep
        if not keep:  # else what it is at is wanted: it comes to this when that is done
            self.actor.supersede.remote(start.generation - 1)
        for number in [number for number in self._lanes if number not in keep]:
            del self._lanes[number]
        self._turns = deque(number for number in self._turns if number in self._lanes)
        if isinstance(start, StartDispatch):
            self._epoch, self.dispatches = None, True
            self._at, self._announces = -1, start.isolate_items or start.isolate_before > start.mark.count
            self._call("begin", self.actor.begin, start)
            return
        dispatcher = self._dispatcher() if start.dispatch_branch >= 0 else None
        if dispatcher is None and start.dispatch_branch >= 0:
            self._epoch = None
            return  # it has ended: when there is another one, all begin anew
        for item in start.shards:
            self._lanes[item.lane] = _Lane(
                Credit(deque([0] * item.held)), start.generation, item.cursor.count, item.isolate_before
            )
            self._turns.append(item.lane)
        # How many items before isolate_before are made together is decided here: see _limit
        start = self._epoch = replace(start, shards=tuple(replace(item, isolate_before=0) for item in start.shards))
        self._call("begin", self.actor.begin, start, dispatcher)
        for deal in deals:
            self._take(deal)
        self._ask()

    def grant(self, generation: int, lane: int, chunks: int) -> None:
        if generation == self._generation and lane in self._lanes:
            self._lanes[lane].credit.used(chunks)
            self._ask()

    def deal(self, message: Deal) -> None:
        if message.generation == self._generation:
            self._take(message)
            self._ask()

    def end(self, generation: int) -> None:
        if generation == self._generation and not self.gone:
            self._lanes.clear()
            self._turns.clear()
            self._epoch = None
            self.actor.supersede.remote(generation)
            self.actor.end.remote(generation)

    def counters(self) -> WorkerCounters | None:
        return self._counters

    # --- what comes of it

    def settle(self) -> list[Event]:
        """The events of the calls that have come back, in the order in which the calls were made."""
        events: list[Event] = []
        while not self.gone and self._calls and self._calls[0].future.done():
            call = self._calls.popleft()
            error = call.future.exception()
            events += self._settled(call, call.future.result()) if error is None else self._failed(error, call)
        if self.asked is not None and self.asked.done() and not self.gone:
            events += self._answered(self.asked)
        if not self.gone:
            self._ask()
            if self._announces:  # it waits for us
                self.ask_status(self._measures_nodes)
        return events

    def _settled(self, call: _Call, answer: Any) -> Iterator[Event]:
        match answer:
            case Hello():
                self.hello = answer
                if answer.error is not None or answer.version != torchpipe.__version__:
                    self.gone = True
                    yield Failed(self, self._unfit(answer))
                    yield Gone(self, End(cause="could not begin", own=True, pid=answer.pid))
                else:
                    self.ready = True
                    self.name = f"{self.name} on {answer.host}"
                    self._counters = WorkerCounters(Times(), [], answer.pid)
                    yield Ready(self)
            case Begun():
                yield from (Reported(self, report) for report in answer.reports)
                for failed in answer.failed:
                    yield from self._chunk_arrived(failed)
            case Produced():
                lane = self._wanted(call.lane, answer.generation)
                if lane is not None:
                    lane.calls -= 1
                    if answer.packed is None and call.lane in self._turns:
                        self._turns.remove(call.lane)  # not at work there: another generation will come
                yield from (Reported(self, report) for report in answer.reports)
                if answer.packed is not None:
                    yield from self._chunk_arrived(answer)

    def _unfit(self, hello: Hello) -> BaseException:
        """Why it cannot begin."""
        if hello.error is not None:
            return load_error(hello.error)
        return RuntimeError(
            f"{self.name} on {hello.host} has torchpipe {hello.version}, this process {torchpipe.__version__}: "
            "install the same version on all nodes (runtime_env={'pip': [...]} does that)"
        )

    def _wanted(self, number: int, generation: int) -> _Lane | None:
        """The lane that something of this generation is of, unless it has begun anew since."""
        lane = self._lanes.get(number)
        return lane if lane is not None and generation >= lane.since else None

    def _chunk_arrived(self, produced: Produced) -> Iterator[Event]:
        if produced.times is not None and self.hello is not None:
            nodes = list(produced.nodes) or ([] if self._counters is None else self._counters.nodes)
            self._counters = WorkerCounters(produced.times, nodes, self.hello.pid)
        lane = self._wanted(produced.lane, produced.generation)
        if lane is None:
            return
        arrival = arrival_of(produced)
        lane.count += arrival.count
        lane.last = max(1, arrival.count)
        lane.sent = max(0, lane.sent - arrival.count)
        if arrival.over:
            lane.done = True
            self._turns.remove(produced.lane)
        elif produced.packed is not None:
            lane.credit.add(arrival.count, produced.packed.sizes, _CHUNK_SIZE)
        yield ChunkArrived(self, produced.generation, produced.lane, arrival)

    def _failed(self, error: BaseException, call: _Call | None = None) -> Iterator[Event]:
        """Whichever call says so first, a death is the same one. ``call``: that was the next to be answered."""
        self.gone = True
        if isinstance(error, RayTaskError) or not isinstance(error, RayError):  # the runtime itself is at fault
            yield Failed(self, error)
            yield Gone(self, End(cause=f"failed: {error}", own=True))
            return
        outside = isinstance(error, ActorUnavailableError | NodeDiedError | TaskCancelledError)
        outside = outside or (isinstance(error, RayActorError) and error.preempted) or self._has_lost_its_node()
        calls = [*([] if call is None else [call]), *self._calls]
        yield Gone(self, self._end(calls, error, own=not outside))

    def _has_lost_its_node(self) -> bool:
        """True if a node on which the actor may run is gone: any node, if the actor has not said where it is."""
        mine = self._nodes if self.hello is None else {self.hello.node_id}
        return not mine <= living_nodes()

    def _end(self, calls: list[_Call], error: BaseException, *, own: bool) -> End:
        """The end of the actor: it answers in order, and its last answers may be lost; it may be two calls further.

        In doubt that is named; then it is asked for one thing at a time, so that the next death tells more.
        """
        pid = None if self.hello is None else self.hello.pid
        lane_number = next((call.lane for call in calls if call.kind == "produce" and call.lane in self._lanes), -1)
        if own and self._at >= 0:
            return End(cause=_cause(error), own=own, lane=0, items=range(self._at, self._at + 1), begun=True, pid=pid)
        if not own or lane_number < 0:
            return End(cause=_cause(error), own=own, pid=pid)
        count = self._lanes[lane_number].count
        asked = sum([call.limit for call in calls if call.lane == lane_number][:2])
        items = range(count, count + asked)
        return End(cause=_cause(error), own=own, lane=lane_number, items=items, begun=True, pid=pid)

    def _answered(self, future: Future[Any]) -> Iterator[Event]:
        self.asked = None
        error = future.exception()
        if error is not None:
            yield from self._failed(error)
            return
        status: Status = future.result()
        self._at = status.at if self._announces else -1
        self._counters = status.counters(0 if self.hello is None else self.hello.pid)
        reports: Sequence[Report] = status.reports
        yield from (Reported(self, report) for report in reports)

    # --- credit

    def _take(self, deal: Deal) -> None:
        lane = self._lanes.get(deal.lane)
        if lane is not None:
            lane.pending.extend(deal.entries)
            lane.over = lane.over or deal.over

    def _ask(self) -> None:
        """Ask for chunks, lane by lane in turn, as long as there is credit."""
        epoch = self._epoch
        if epoch is None or self.gone:
            return
        asked = True
        while asked:
            asked = False
            for _ in range(len(self._turns)):
                number = self._turns[0]
                self._turns.rotate(-1)
                if self._may_ask(epoch, self._lanes[number]):
                    self._ask_for(epoch, number)
                    asked = True

    def _may_ask(self, epoch: StartEpoch, lane: _Lane) -> bool:
        if lane.calls >= _MOST_CALLS or (self._calls and self._one_at_a_time()):
            return False
        if epoch.from_entries:
            left = lane.sent or (lane.over and not lane.done)  # the end has to be asked for, too
            if not lane.pending and not (left and not lane.calls):
                return False
        return lane.credit.may_go_on(
            epoch.window, epoch.window_bytes, from_entries=epoch.from_entries, expected=lane.calls
        )

    def _one_at_a_time(self) -> bool:
        """Something here has ended an actor."""
        singly = self._epoch is not None and self._epoch.isolate_items
        return singly or any(not lane.done and lane.count < lane.isolate_before for lane in self._lanes.values())

    def _limit(self, epoch: StartEpoch, lane: _Lane) -> int:
        """The most items of the next chunk; before ``isolate_before`` a part, so that the next death tells the part."""
        if epoch.isolate_items:
            return 1
        usual = min(lane.credit.limit, 2 * lane.last)
        return (
            usual if lane.count >= lane.isolate_before else min(usual, -(-(lane.isolate_before - lane.count) // _PARTS))
        )

    def _ask_for(self, epoch: StartEpoch, number: int) -> None:
        lane = self._lanes[number]
        limit = self._limit(epoch, lane)
        deal = None
        if epoch.from_entries:
            entries = tuple(lane.pending.popleft() for _ in range(min(limit, len(lane.pending))))
            over = lane.over and not lane.pending
            if entries or (over and not lane.end_sent):
                deal = Deal.of(epoch.generation, number, entries, over)
                lane.sent += len(entries)
                lane.end_sent = lane.end_sent or over
        seconds = _CHUNK_S if lane.credit.ahead or lane.calls else _HUNGRY_S
        lane.calls += 1
        self._call(
            "produce", self.actor.produce, epoch.generation, number, limit, seconds, deal, lane=number, limit=limit
        )

    def _call(self, kind: _Kind, method: Any, *arguments: Any, lane: int = -1, limit: int = 1) -> None:
        future = method.remote(*arguments).future()
        self._calls.append(_Call(kind, future, lane, limit))
        self._watch(self.number, future)

    def ask_status(self, measures_nodes: bool) -> None:
        """Ask how it is, unless an answer is still awaited."""
        if self.asked is None and not self.gone:
            self.asked_at = time.monotonic()
            self._measures_nodes = measures_nodes
            self.asked = self.actor.status.remote(measures_nodes, self._at).future()
            self._watch(self.number, self.asked)


def _cause(error: BaseException) -> str:
    """The cause of an actor's end, in a few words: the last line of Ray's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else type(error).__name__
    return f"has ended ({type(error).__name__}: {text.partition(' Some common causes')[0][:300]})"
