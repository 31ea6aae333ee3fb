"""The supervisor: the only creator and killer of worker processes, and the one who waits for what they send.

Runs in the main process, without a thread of its own: in whichever thread consumes the stream, one at a time. Only
:meth:`Supervisor.interrupt` may be called from another. Owns the crew of processes, and the ledgers of their shards.

When a timeout is set, the wait for the processes ends now and then, to look for heartbeats. Recovery is restore: a
worker that dies, whatever its exit code, is started anew from the cursors behind what has arrived. With a dispatcher
any death sets back all of them: what one worker had been dealt can only come again from the dispatcher.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.context import BaseContext

from reading_services._runtime.board import Slot
from reading_services._runtime.channel import Frame
from reading_services._runtime.crew import Crew
from reading_services._runtime.dispatch_link import Listener
from reading_services._runtime.dispatcher import run_dispatcher
from reading_services._runtime.items import load_items
from reading_services._runtime.ledger import DeathLedger, ShardLedger, restart_delay_s
from reading_services._runtime.messages import (
    ChunkMessage,
    EndEpoch,
    Failed,
    Grant,
    Notice,
    Ready,
    StartDispatch,
    StartEpoch,
)
from reading_services._runtime.post_mortem import PostMortem
from reading_services._runtime.process import WorkerProcess, check_room_for_files
from reading_services._runtime.remote_error import dump_error, load_error
from torchpipe.dispatch import dispatch_start
from torchpipe.errors import IteratorInvalidated, ReplayWarning, WorkerDiedError
from torchpipe.failure import add_note
from torchpipe.merge import ShardPosition
from torchpipe.reading_service import EpochStart
from torchpipe.shard import Chunk

__all__ = ["DispatchPart", "Supervisor"]

_log = logging.getLogger("torchpipe")

_DISPATCHER = -1  # its number among the processes
_REAP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DispatchPart:
    """The dispatched part of a graph: pickled for its process, and the names of its nodes by their numbers."""

    graph: bytes
    node_names: Mapping[int, str]


class Supervisor:
    """Runs ``num_workers`` processes over many epochs. ``close`` ends them; a forgotten one ends with the object."""

    def __init__(
        self,
        *,
        num_workers: int,
        context: BaseContext,
        graph: bytes,
        node_names: Mapping[int, str],
        dispatch: DispatchPart | None = None,
        window: int,
        timeout_s: float | None,
        max_deaths: int,
    ) -> None:
        check_room_for_files("the supervisor of the workers")
        self.num_workers = num_workers
        self.restarts = 0
        self._context = context
        self._graph = graph
        self._node_names = node_names
        self._dispatch = dispatch
        self._listener = None if dispatch is None else Listener()
        self._fail_at: tuple[int, bytes] | None = None  # a dispatched item that is not to be tried again
        self._window = window
        self._timeout_s = timeout_s
        self._max_deaths = max_deaths
        self._deaths = DeathLedger(max_deaths)
        self._lost: set[int] = set()  # died when nothing was needed of them: the next epoch starts them anew
        self._delayed: dict[int, tuple[float, bool]] = {}  # number -> (when to start it anew, carefully?)
        self._generation = 0
        self._epoch: EpochStart | None = None
        self._ledgers: dict[int, ShardLedger] = {}
        self._interrupted = False
        self._failure: BaseException | None = None
        self._crew = Crew() if self._listener is None else Crew(self._listener)

    @property
    def _numbers(self) -> list[int]:
        """The processes that there should be: the dispatcher first, which workers connect to."""
        return ([] if self._dispatch is None else [_DISPATCHER]) + list(range(self.num_workers))

    def worker_pids(self) -> list[int]:
        """The process ids of the processes that are alive: the dispatcher's, if there is one, then the workers'."""
        return [worker.pid for worker in self._crew if worker.is_alive()]

    # -- epochs ---------------------------------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Start the processes that do not run yet: all of them before any is waited for."""
        for worker in [worker for worker in self._crew if not worker.is_alive()]:
            for frame in self._crew.last_words(worker):
                if isinstance(frame[0], Failed | Notice):  # chunks are of an epoch that is over
                    self._handle(worker, frame)
            self._lose(worker, self._examine(worker))
        for number in self._numbers:
            if number not in self._crew:
                self._start_worker(number)
                self.restarts += number in self._lost
        self._lost.clear()

    def begin_epoch(self, start: EpochStart, positions: list[ShardPosition]) -> None:
        """Let the workers produce ``positions``; shard s runs in worker s % num_workers."""
        self._epoch = start
        self._fail_at = None
        self._interrupted = False
        self._deaths = DeathLedger(self._max_deaths)
        self._delayed.clear()
        self._ledgers = {item.shard: ShardLedger.begin(item, self._window) for item in positions}
        self.start_workers()
        self._begin_all()

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay for the next epoch. Idempotent."""
        if self._epoch is None:
            return
        self._epoch = None
        self._failure = None  # not in begin_epoch: what a process failed with between two epochs is the next one's
        self._ledgers = {}
        self._delayed.clear()
        for number in self._numbers:
            self._crew.send(number, EndEpoch(generation=self._generation))

    def pull(self, shard: int) -> Chunk:
        """The next chunk of ``shard``; the one before it has been used up.

        Raises: WorkerDiedError in the chunk if a position keeps killing its worker; IteratorInvalidated after
        :meth:`interrupt`; what a worker could not start with.
        """
        ledger = self._ledgers[shard]
        released = ledger.release()
        if released:
            grant = Grant(generation=self._generation, shard=shard, items=released)
            self._crew.send(shard % self.num_workers, grant)
        while True:
            if self._interrupted:
                raise IteratorInvalidated("the loader was closed from another thread while the next item was awaited")
            chunk = ledger.take()
            if chunk is not None:
                return chunk
            if self._failure is not None:
                raise self._failure
            self._wait()

    def interrupt(self) -> None:
        """Make a :meth:`pull` in another thread return at once. Thread-safe."""
        self._interrupted = True
        self._crew.wake()

    def close(self) -> None:
        """End all processes: about 3 s at most. Idempotent."""
        self._epoch = None
        self._ledgers = {}
        self._crew.close()

    # -- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for anything to happen, and handle it."""
        timeout = None if self._timeout_s is None else min(self._timeout_s / 4, 0.5)
        if self._delayed:
            until_start = max(0.0, min(at for at, _ in self._delayed.values()) - time.monotonic())
            timeout = until_start if timeout is None else min(timeout, until_start)
        for worker, frames, gone in self._crew.wait(timeout):
            for frame in frames:
                self._handle(worker, frame)
            if gone:
                self._recover(worker)
        if self._timeout_s is not None:
            self._check_heartbeats(self._timeout_s)
        self._start_delayed()

    def _check_heartbeats(self, timeout_s: float) -> None:
        for worker in self._crew:
            if worker.silent_for_s(timeout_s):
                _log.warning(
                    "%s (pid %d) showed no sign of life for %g s: killing it (was it stopped, or does native code keep "
                    "the interpreter lock?)",
                    worker.name,
                    worker.pid,
                    timeout_s,
                )
                worker.kill()
                self._recover(worker)

    def _handle(self, worker: WorkerProcess, frame: Frame) -> None:
        message, payload = frame
        match message:
            case ChunkMessage():
                ledger = self._ledgers.get(message.shard)
                if message.generation == self._generation and ledger is not None:
                    ledger.arrive(_chunk(message, payload))
            case Ready():
                worker.say_ready()
            case Notice(category=category, text=text):
                warnings.warn(text, _warning_category(category), stacklevel=2)
            case Failed(error=data):
                worker.failed = True
                self._failure = load_error(data)
            case _:
                raise TypeError(f"the main process cannot handle {message!r}")

    # -- recovery -------------------------------------------------------------------------------------------------

    def _recover(self, worker: WorkerProcess) -> None:
        """A process has died: start it anew from the cursors, or record what killed it too often."""
        number, dead = worker.worker, self._examine(worker)
        mine = [item for item in self._ledgers.values() if self._serves(number, item.shard)]
        if self._failure is not None or all(item.over for item in mine):
            self._lose(worker, dead)
            return
        self._crew.bury(number)
        progress = tuple(item.count for item in mine)
        deaths = self._deaths.record(number, dead.shard, dead.index if dead.shard >= 0 else progress)
        if deaths >= self._max_deaths:
            self._give_up(dead, mine, dead.error(deaths))
        else:
            _log.warning(
                "%s: starting it anew from the last cursors (death %d of %d at this position)",
                dead,
                deaths,
                self._max_deaths,
            )
        if not all(item.over for item in mine):
            self.restarts += 1
            # Not slept here: the wait goes on for the others, and ends with interrupt()
            self._delayed[number] = (time.monotonic() + restart_delay_s(deaths), deaths >= self._max_deaths - 1)
            self._start_delayed()

    def _lose(self, worker: WorkerProcess, dead: PostMortem) -> None:
        """Nothing more is needed of it in this epoch."""
        if not worker.failed:  # else it has said why, and its error is raised
            _log.warning("%s: nothing was needed of it, the next epoch starts it anew", dead)
            self._lost.add(worker.worker)
        self._crew.bury(worker.worker)

    def _start_delayed(self) -> None:
        """Start anew the processes whose time has come."""
        now = time.monotonic()
        for number, (at, careful) in list(self._delayed.items()):
            if at <= now:
                del self._delayed[number]
                self._start_worker(number)
                if self._dispatch is not None:
                    self._begin_all(number if careful else None)
                else:
                    self._begin_worker(number, careful=careful)

    def _examine(self, worker: WorkerProcess) -> PostMortem:
        shard, index, node = (worker.board[slot] for slot in (Slot.SHARD, Slot.INDEX, Slot.NODE))
        worker.process.join(_REAP_S)
        if worker.is_alive():
            worker.kill()
            worker.process.join(_REAP_S)
        dispatcher = worker.worker == _DISPATCHER
        names = self._dispatch.node_names if dispatcher and self._dispatch is not None else self._node_names
        return PostMortem(
            name=worker.name,
            pid=worker.pid,
            cause=worker.cause_of_death(),
            dispatcher=dispatcher,
            shard=shard,
            index=index,
            node=names.get(node),
        )

    def _serves(self, number: int, shard: int) -> bool:
        return number == _DISPATCHER or shard % self.num_workers == number

    def _give_up(self, dead: PostMortem, mine: list[ShardLedger], error: WorkerDiedError) -> None:
        """The error takes the place of the item; without a culprit, of the next one of every shard of that process."""
        # One that died there although that item is not tried again never got to it: it died while it was being restored
        gets_there = self._fail_at is None or self._fail_at[0] != dead.index
        if dead.dispatcher and dead.shard >= 0 and gets_there:
            self._fail_at = (dead.index, dump_error(error))
            return
        for ledger in mine:
            if not ledger.over and (dead.dispatcher or dead.shard in (ledger.shard, -1)):
                ledger.arrive(Chunk(error=error))

    def _begin_all(self, careful: int | None = None) -> None:
        """Begin a new generation: the dispatcher at the newest mark that serves all shards, and every worker."""
        self._generation += 1
        if self._dispatch is not None:
            self._begin_dispatcher(careful=careful == _DISPATCHER)
        for worker in range(self.num_workers):
            if worker in self._crew:
                self._begin_worker(worker, careful=careful == worker)

    def _begin_dispatcher(self, *, careful: bool) -> None:
        epoch = self._epoch
        assert epoch is not None
        snapshots = {item.shard: item.cursor.snapshot for item in self._ledgers.values() if not item.over}
        start = dispatch_start(snapshots, epoch.num_shards)
        message = StartDispatch(
            generation=self._generation,
            seed=epoch.seed,
            epoch=epoch.epoch,
            num_shards=epoch.num_shards,
            rank=epoch.rank,
            world_size=epoch.world_size,
            mark_position=start.mark.position,
            mark_snapshot=start.mark.snapshot,
            needed=tuple(start.needed.items()),
            careful=careful,
            fail_at=self._fail_at,
        )
        self._crew.send(_DISPATCHER, message)

    # -- processes ------------------------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        listening = () if self._listener is None else (self._listener.socket.fileno(),)
        if number == _DISPATCHER:
            assert self._dispatch is not None
            assert self._listener is not None
            dispatcher = WorkerProcess(
                number,
                self._context,
                self._dispatch.graph,
                name="dispatcher",
                target=run_dispatcher,
                extra=(self._listener.socket,),
            )
            self._crew.start(dispatcher)
        else:
            self._crew.start(WorkerProcess(number, self._context, self._graph, name=f"worker {number}"), *listening)

    def _begin_worker(self, number: int, *, careful: bool = False) -> None:
        epoch = self._epoch
        assert epoch is not None
        shards = [
            ledger.restart()
            for ledger in self._ledgers.values()
            if ledger.shard % self.num_workers == number and not ledger.over
        ]
        message = StartEpoch(
            generation=self._generation,
            seed=epoch.seed,
            epoch=epoch.epoch,
            num_shards=epoch.num_shards,
            rank=epoch.rank,
            world_size=epoch.world_size,
            shards=tuple(shards),
            max_chunk=max(1, self._window // 2),
            dispatch_address=None if self._listener is None else self._listener.address,
            careful=careful,
        )
        self._crew.send(number, message)


def _chunk(message: ChunkMessage, payload: memoryview) -> Chunk:
    try:
        items = load_items(payload)
    except Exception as error:  # in its place in the stream, like any other
        add_note(error, f"torchpipe: items of shard {message.shard} could not be rebuilt in the main process")
        return Chunk(error=error)
    failure = None if message.error is None else load_error(message.error)
    return Chunk(items=items, snapshot=message.snapshot, ended=message.ended, error=failure)


def _warning_category(name: str) -> type[Warning]:
    return ReplayWarning if name == ReplayWarning.__name__ else UserWarning
