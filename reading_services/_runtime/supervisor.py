"""The supervisor: the only creator and killer of worker processes, and the one who waits for what they send.

Runs in the main process, without a thread of its own: in whichever thread consumes the stream, one at a time. Only
:meth:`Supervisor.interrupt` may be called from another.

Owns: the processes with their sockets and boards, the selector, the wake-up pipe. One wait covers messages, the
wake-up and all process sentinels; it ends with any of them, or, when a timeout is set, to look for heartbeats. Recovery
is restore: a worker that dies, whatever its exit code, is started anew from the cursors behind what has arrived.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
import warnings
import weakref
from collections.abc import Mapping
from multiprocessing.context import BaseContext

from reading_services._runtime.board import Slot
from reading_services._runtime.channel import ChannelClosed, Frame
from reading_services._runtime.items import load_items
from reading_services._runtime.ledger import DeathLedger, ShardLedger
from reading_services._runtime.messages import ChunkMessage, EndEpoch, Failed, Grant, Notice, Ready, StartEpoch
from reading_services._runtime.process import WorkerProcess, stop_all
from reading_services._runtime.remote_error import load_error
from torchpipe.errors import IteratorInvalidated, ReplayWarning, WorkerDiedError
from torchpipe.merge import ShardPosition
from torchpipe.reading_service import EpochStart
from torchpipe.shard import Chunk

__all__ = ["Supervisor"]

_log = logging.getLogger("torchpipe")

_WAKE = "wake-up"
_REAP_S = 1.0


class Supervisor:
    """Runs ``num_workers`` processes over many epochs. ``close`` ends them; a forgotten one ends with the object."""

    def __init__(
        self,
        *,
        num_workers: int,
        context: BaseContext,
        graph: bytes,
        node_names: Mapping[int, str],
        window: int,
        timeout_s: float | None,
        max_deaths: int,
    ) -> None:
        self.num_workers = num_workers
        self.restarts = 0
        self._context = context
        self._graph = graph
        self._node_names = node_names
        self._window = window
        self._timeout_s = timeout_s
        self._max_deaths = max_deaths
        self._deaths = DeathLedger(max_deaths)
        self._generation = 0
        self._epoch: EpochStart | None = None
        self._ledgers: dict[int, ShardLedger] = {}
        self._workers: dict[int, WorkerProcess] = {}
        self._interrupted = False
        self._failure: BaseException | None = None
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, _WAKE)
        self._finalizer = weakref.finalize(
            self, _finalize, os.getpid(), self._workers, self._selector, (self._wake_read, self._wake_write)
        )

    def worker_pids(self) -> list[int]:
        """The process ids of the workers that are alive, in the order of their numbers."""
        return [self._workers[number].pid for number in sorted(self._workers) if self._workers[number].is_alive()]

    # -- epochs ---------------------------------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Start the processes that do not run yet: all of them before any is waited for."""
        for worker in range(self.num_workers):
            if worker in self._workers and not self._workers[worker].is_alive():
                self._bury(worker)
            if worker not in self._workers:
                self._start_worker(worker)

    def begin_epoch(self, start: EpochStart, positions: list[ShardPosition]) -> None:
        """Let the workers produce ``positions``; shard s runs in worker s % num_workers."""
        self._generation += 1
        self._epoch = start
        self._interrupted = False
        self._failure = None
        self._deaths = DeathLedger(self._max_deaths)
        self._ledgers = {item.shard: ShardLedger.begin(item, self._window) for item in positions}
        self.start_workers()
        for worker in range(self.num_workers):
            self._begin_worker(worker)

    def end_epoch(self) -> None:
        """Let the workers stop producing; they stay for the next epoch. Idempotent."""
        if self._epoch is None:
            return
        self._epoch = None
        self._ledgers = {}
        for worker in self._workers.values():
            self._send(worker, EndEpoch(generation=self._generation))

    def pull(self, shard: int) -> Chunk:
        """The next chunk of ``shard``; the one before it has been used up.

        Raises: WorkerDiedError in the chunk if a position keeps killing its worker; IteratorInvalidated after
        :meth:`interrupt`; what a worker could not start with.
        """
        ledger = self._ledgers[shard]
        released = ledger.release()
        if released:
            worker = self._workers.get(shard % self.num_workers)
            if worker is not None:
                self._send(worker, Grant(generation=self._generation, shard=shard, items=released))
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
        try:
            os.write(self._wake_write, b"x")
        except OSError:  # full: it is awake; closed: nobody waits
            pass

    def close(self) -> None:
        """End all processes: about 3 s at most. Idempotent."""
        self._epoch = None
        self._ledgers = {}
        self._finalizer()

    # -- waiting --------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for anything to happen, and handle it."""
        timeout = None if self._timeout_s is None else min(self._timeout_s / 4, 0.5)
        for key, events in self._selector.select(timeout):
            if key.data is _WAKE:
                self._drain_wake_up()
                continue
            worker = self._workers.get(key.data.worker)
            if worker is not key.data:
                continue  # buried a moment ago, in this same round
            try:
                if events & selectors.EVENT_WRITE:
                    worker.channel.flush()
                    self._watch_outbox(worker)
                if key.fd == worker.sentinel or events & selectors.EVENT_READ:
                    self._receive(worker, gone=key.fd == worker.sentinel)
            except ChannelClosed:
                self._recover(worker)
        if self._timeout_s is not None:
            self._check_heartbeats(self._timeout_s)

    def _receive(self, worker: WorkerProcess, *, gone: bool) -> None:
        """Take what has arrived. Of a process that is gone, all of it: it was sent whole, so it is good."""
        while (frame := worker.channel.receive(wait=False)) is not None:
            self._handle(worker, frame)
        if gone:
            raise ChannelClosed("the process has ended")

    def _drain_wake_up(self) -> None:
        try:
            while os.read(self._wake_read, 64):
                pass
        except BlockingIOError:
            pass

    def _check_heartbeats(self, timeout_s: float) -> None:
        for worker in list(self._workers.values()):
            if worker.silent_for_s(timeout_s):
                _log.warning(
                    "worker %d (pid %d) showed no sign of life for %g s: killing it (was it stopped, or does native "
                    "code keep the interpreter lock?)",
                    worker.worker,
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
                worker.ready = True
            case Notice(category=category, text=text):
                warnings.warn(text, _warning_category(category), stacklevel=2)
            case Failed(error=data):
                self._failure = load_error(data)
            case _:
                raise TypeError(f"the main process cannot handle {message!r}")

    # -- recovery -------------------------------------------------------------------------------------------------

    def _recover(self, worker: WorkerProcess) -> None:
        """A worker has died, or must be given up: start it anew from the cursors, or record who killed it too often."""
        shard, index, node = (worker.board[slot] for slot in (Slot.SHARD, Slot.INDEX, Slot.NODE))
        number, pid = worker.worker, worker.pid
        worker.process.join(_REAP_S)
        if worker.is_alive():
            worker.kill()
            worker.process.join(_REAP_S)
        cause = worker.cause_of_death()
        self._bury(number)
        mine = [item for item in self._ledgers.values() if item.shard % self.num_workers == number]
        if self._failure is not None or not any(not item.over for item in mine):
            return  # nothing more is needed of it; the next epoch starts a new one
        progress = tuple(item.count for item in mine)
        deaths = self._deaths.record(number, shard, index if shard >= 0 else progress)
        what = f"item {index} of shard {shard}" if shard >= 0 else "no item (starting, or waiting for the consumer)"
        if deaths >= self._max_deaths:
            self._give_up(shard, mine, _obituary(number, pid, cause, deaths, what, self._node_names.get(node)))
        else:
            _log.warning(
                "worker %d (pid %d) %s while making %s: starting it anew from the last cursors "
                "(death %d of %d at this position)",
                number,
                pid,
                cause,
                what,
                deaths,
                self._max_deaths,
            )
        if any(not item.over for item in mine):
            self.restarts += 1
            self._start_worker(number)
            self._begin_worker(number, careful=deaths >= self._max_deaths - 1)

    def _give_up(self, shard: int, mine: list[ShardLedger], error: WorkerDiedError) -> None:
        """The error takes the place of the shard's next item; without a culprit, of every shard's of that worker."""
        for ledger in mine:
            if not ledger.over and shard in (ledger.shard, -1):
                ledger.arrive(Chunk(error=error))

    # -- processes ------------------------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        worker = WorkerProcess(number, self._context, self._graph)
        others = [other.channel.fileno() for other in self._workers.values()]
        worker.start((*others, self._wake_read, self._wake_write))
        self._workers[number] = worker
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)

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
            shards=tuple(shards),
            max_chunk=max(1, self._window // 2),
            careful=careful,
        )
        self._send(self._workers[number], message)

    def _send(self, worker: WorkerProcess, message: StartEpoch | Grant | EndEpoch) -> None:
        try:
            worker.channel.send(message)
            self._watch_outbox(worker)
        except ChannelClosed:
            pass  # it has died: its sentinel will say so in the next wait

    def _watch_outbox(self, worker: WorkerProcess) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.has_outbox else 0)
        self._selector.modify(worker.channel, events, worker)

    def _bury(self, number: int) -> None:
        worker = self._workers.pop(number)
        self._selector.unregister(worker.channel)
        self._selector.unregister(worker.sentinel)
        worker.release()


def _chunk(message: ChunkMessage, payload: memoryview) -> Chunk:
    items = load_items(payload)
    error = None if message.error is None else load_error(message.error)
    return Chunk(items=items, snapshot=message.snapshot, ended=message.ended, error=error)


def _warning_category(name: str) -> type[Warning]:
    return ReplayWarning if name == ReplayWarning.__name__ else UserWarning


def _obituary(worker: int, pid: int, cause: str, deaths: int, what: str, node: str | None) -> WorkerDiedError:
    where = f" in {node}" if node is not None else ""
    return WorkerDiedError(
        f"worker {worker} (pid {pid}) {cause} while making {what}{where}: death number {deaths} at this position, so "
        "no accident. SIGKILL often means that memory ran out, SIGSEGV a crash in native code, an exit code that user "
        "code called exit(). Run the graph with InProcessReadingService to see it happen in a debugger"
    )


def _finalize(
    pid: int, workers: dict[int, WorkerProcess], selector: selectors.BaseSelector, wake: tuple[int, int]
) -> None:
    """End everything that a supervisor owns; also when it is collected, or at exit. Never in a forked child."""
    if os.getpid() != pid:
        return
    began = time.monotonic()
    stop_all(list(workers.values()))
    workers.clear()
    selector.close()
    for fd in wake:
        os.close(fd)
    _log.debug("stopped the workers in %.3f s", time.monotonic() - began)
