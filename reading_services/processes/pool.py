"""Workers that are processes of this machine, and the one wait for all that can happen to them.

Runs in the main process. Owns the processes with their sockets and pages, the selector and the wake-up sockets. The
wait covers messages, room in sockets, the wake-up and the ends of processes; it ends with any of them, or after the
timeout.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import util
from multiprocessing.context import BaseContext
from typing import Any

from reading_services.engine.messages import Message, Report
from reading_services.engine.workers import (
    DISPATCHER,
    Arrival,
    ChunkArrived,
    Event,
    Failed,
    Gone,
    Ready,
    Reported,
    Section,
    Worker,
    WorkerPool,
)
from reading_services.processes import wire
from reading_services.processes.channel import ChannelClosed, Frame
from reading_services.processes.dispatch_link import Listener
from reading_services.processes.dispatcher import run_dispatcher
from reading_services.processes.payloads import Delivery, Receiver
from reading_services.processes.process import ProcessWorker, ask_to_stop, stop_all
from reading_services.processes.status_page import Field
from reading_services.processes.wire import ChunkMessage
from reading_services.processes.worker import run_worker
from torchpipe.ahead.waiting import begin_exit, is_cut_off
from torchpipe.errors import IteratorInvalidated
from torchpipe.execution.shard import Chunk
from torchpipe.node.failures import add_note, load_error

__all__ = ["ProcessPool", "arrival_of"]

_IN_USE_S = 5.0  # a call takes as long as starting a process does
_LOOK_S = 0.5  # for signs of life

_log = logging.getLogger("torchpipe")


class ProcessPool(WorkerPool):
    """``close`` ends all processes; forgotten ones end with the object, or at exit.

    ``silent_s``: after how long without a sign of life one is killed (None: never).
    """

    def __init__(
        self, context: BaseContext, shards: Section, dispatched: Section | None = None, *, silent_s: float | None = None
    ) -> None:
        self._context, self._shards, self._dispatched, self._silent_s = context, shards, dispatched, silent_s
        self.method = context.get_start_method()
        self._lock = threading.RLock()  # held by whoever is at it, but for the wait itself
        self._workers: dict[int, ProcessWorker] = {}
        self._leaving: list[ProcessWorker] = []  # let go of, until their end
        self._measures_nodes = False
        self._looked_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()  # objects, which close by themselves after a Ctrl-C in here
        self._listener = None if dispatched is None else Listener()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        closed = (self._selector, self._woken, self._waker, *([] if self._listener is None else [self._listener]))
        self._owned = (os.getpid(), self._lock, self._workers, self._leaving, closed)
        self._finalizer = weakref.finalize(self, _finalize_forgotten, *self._owned)
        # Before multiprocessing's own hook, which asks daemonic processes to end and waits for ever for one that is
        # stopped or deaf; and at the end of a process that multiprocessing itself has started, which has no other hook.
        util.Finalize(self, self._finalizer, exitpriority=0)
        _tell_of_the_end()

    def __iter__(self) -> Iterator[ProcessWorker]:
        """The processes that were opened and not let go of, in the order of their numbers."""
        # One that is being started has no pid yet: whoever kills what is given here would kill their own process group
        return iter([worker for _, worker in sorted(self._workers.items()) if worker.pid])

    def pids(self) -> list[int]:
        """The ids of the processes that are alive: the dispatcher's, if there is one, then the workers'."""
        return [worker.pid for worker in self if worker.is_alive()]

    def processes(self) -> list[Any]:
        """The ``multiprocessing`` processes that run just now, in the order of their numbers."""
        return [worker.process for worker in self]

    def open(self, number: int) -> Worker:
        with self._lock:
            self._check_not_cut_off()
            self._forget_left()
            if number == DISPATCHER:
                section, name = self._dispatched, "dispatcher"
                target: Callable[..., None] = run_dispatcher
                extra: tuple[Any, ...] = (self._listener.socket,) if self._listener is not None else ()
            else:
                section, name = self._shards, f"worker {number}"
                target = run_worker
                extra = () if self._listener is None else (self._listener.address,)
            assert section is not None
            worker = ProcessWorker(
                number,
                name,
                context=self._context,
                target=target,
                arguments=(section.image, *extra),
                node_names=section.node_names,
                send=partial(_send, self._lock, self._selector),  # not a method: a worker does not keep all of them
            )
            worker.page.times.wanted = self._measures_nodes
            worker.page[Field.EACH] = self._silent_s is not None
            ours = [other.channel.fileno() for other in self]
            ours += [self._woken.fileno(), self._waker.fileno()]
            if self._listener is not None and number != DISPATCHER:
                ours.append(self._listener.socket.fileno())
            self._workers[number] = worker  # first: whatever a Ctrl-C leaves of it is ended with the others
            try:
                worker.start(tuple(ours))
            except Exception:
                if worker.process is None:  # else it was a signal's handler that raised, and the process is there
                    del self._workers[number]
                raise
            self._selector.register(worker.channel, selectors.EVENT_READ, worker)
            if worker.handle is not None:
                self._selector.register(worker.handle, selectors.EVENT_READ, worker)
            return worker

    def wait(self, timeout_s: float) -> list[Event]:
        ready = self._selector.select(min(timeout_s, self._look_s))
        self._check_not_cut_off()
        events: list[Event] = []
        with self._lock:
            for key, mask in ready:
                worker: ProcessWorker | None = key.data
                if worker is None:
                    self._drain_wake_up()
                elif self._workers.get(worker.number) is worker:  # not let go of meanwhile
                    if mask & selectors.EVENT_WRITE:
                        self._flush(worker)
                    events += self._events_of(worker, ended=key.fd == worker.handle)
            if time.monotonic() - self._looked_at >= self._look_s:
                events += self._missing()
        return events

    def pending(self, worker: Worker) -> list[Event]:
        assert isinstance(worker, ProcessWorker)
        with self._lock:
            return self._events_of(worker, ended=not worker.is_alive())

    def drop(self, worker: Worker) -> None:
        assert isinstance(worker, ProcessWorker)
        with self._lock:
            if self._workers.get(worker.number) is worker:
                del self._workers[worker.number]
            if worker.ignored:  # it has ended, or is of no use
                worker.signal(signal.SIGKILL)
            else:
                self._ignore(worker)
                ask_to_stop(worker)
            self._leaving.append(worker)
            self._forget_left()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake; or closed
            self._waker.send(b"x")

    def measure_nodes(self, wanted: bool) -> None:
        with self._lock:
            self._measures_nodes = wanted
            for worker in self:
                worker.page.times.wanted = wanted

    def close(self) -> None:
        """End all processes: about 3 s at most. Idempotent. What an interrupt leaves here ends at exit."""
        if self._finalizer.alive:
            _finalize(*self._owned)
            self._finalizer.detach()

    @property
    def _look_s(self) -> float:
        return _LOOK_S if self._silent_s is None else min(_LOOK_S, self._silent_s / 4)

    def _flush(self, worker: ProcessWorker) -> None:
        if not worker.ignored:
            with contextlib.suppress(ChannelClosed):
                worker.channel.flush()
                _watch_outbox(self._selector, worker)

    def _events_of(self, worker: ProcessWorker, *, ended: bool) -> list[Event]:
        """The events that a worker has sent whole, and its end. Those of an ended worker are as good as any."""
        if worker.ignored:
            return []
        events: list[Event] = []
        try:
            while (frame := worker.channel.receive(wait=False)) is not None:
                events.append(_event_of(worker, frame))
        except ChannelClosed:
            ended = True
        if ended:
            self._ignore(worker)
            events.append(Gone(worker, worker.examine()))
        return events

    def _ignore(self, worker: ProcessWorker) -> None:
        """Nothing more is read of it."""
        if not worker.ignored:
            worker.ignored = True
            self._selector.unregister(worker.channel)
            if worker.handle is not None:
                self._selector.unregister(worker.handle)

    def _missing(self) -> list[Event]:
        """Kill those that have shown no sign of life for too long."""
        self._looked_at = time.monotonic()
        events: list[Event] = []
        for worker in self:
            if worker.ignored or not worker.is_missing(self._silent_s):
                continue
            took = f" for {self._silent_s:g} s" if worker.ready else " since it was started"
            why = (
                f"has made no progress{took}: killing it. Look for a read that hangs, or give more of timeout=, the "
                "seconds that an item, or all that comes before the first one, may take"
                if worker.stuck
                else f"has not responded{took}: killing it. Either it was stopped (SIGSTOP, a paused container), or "
                "native code keeps the interpreter lock: then give more of timeout="
            )
            _log.warning("%s (pid %d) %s", worker.name, worker.pid, why)
            worker.silenced = True
            worker.signal(signal.SIGKILL)
            worker.wait_end(_LOOK_S)
            events += self._events_of(worker, ended=True)
        return events

    def _forget_left(self) -> None:
        for worker in [worker for worker in self._leaving if not worker.is_alive()]:
            self._leaving.remove(worker)
            worker.release()

    def _check_not_cut_off(self) -> None:
        """At exit, processes that have ended have not died, and are not replaced. Raises: IteratorInvalidated."""
        if not self._finalizer.alive and is_cut_off():
            raise IteratorInvalidated("the program ends, and has ended the workers")

    def _drain_wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(64):
                pass


def _send(lock: threading.RLock, selector: selectors.BaseSelector, worker: ProcessWorker, message: Message) -> None:
    """Now, or when there is room. To one that has ended, nothing: the wait will tell."""
    with lock:
        if not worker.ignored:
            with contextlib.suppress(ChannelClosed):
                worker.channel.send(message)
                _watch_outbox(selector, worker)


def _watch_outbox(selector: selectors.BaseSelector, worker: ProcessWorker) -> None:
    events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.has_outbox else 0)
    selector.modify(worker.channel, events, worker)


def _event_of(worker: ProcessWorker, frame: Frame) -> Event:
    message, payload = frame
    match message:
        case wire.ChunkMessage():  # the slot of one that nobody wants is given back with the arrival
            return ChunkArrived(worker, message.generation, message.lane, arrival_of(message, payload, worker.receiver))
        case wire.ReadyMessage():
            worker.ready = True
            worker.seen()
            return Ready(worker)
        case Report():
            return Reported(worker, message)
        case wire.FailedMessage(error=data):
            return Failed(worker, load_error(data))
        case _:
            raise TypeError(f"the main process cannot handle {message!r}")


_tells_of_the_end_of = 0  # a process


def _tell_of_the_end() -> None:
    """Before anything is ended at exit: last registered, first called."""
    global _tells_of_the_end_of
    atexit.unregister(begin_exit)
    atexit.register(begin_exit)
    if _tells_of_the_end_of != os.getpid():  # what multiprocessing has started calls nothing of atexit's
        _tells_of_the_end_of = os.getpid()
        util.Finalize(None, begin_exit, exitpriority=1)


def _finalize_forgotten(pid: int, lock: threading.RLock, *owned: Any) -> None:
    """When the workers are collected, or at exit: then a daemon thread may be in the midst of using them."""
    if os.getpid() != pid:  # where the lock may have been taken for ever
        return
    free = lock.acquire(timeout=_IN_USE_S)
    try:
        _finalize(pid, threading.RLock(), *owned)
    finally:
        if free:
            lock.release()


def _finalize(
    pid: int,
    lock: threading.RLock,
    workers: dict[int, ProcessWorker],
    leaving: list[ProcessWorker],
    resources: tuple[Any, ...],
) -> None:
    """End all processes, and close ``resources``. Never in a forked child. Idempotent."""
    if os.getpid() != pid:
        return
    began = time.monotonic()
    with lock:
        try:
            stop_all([*workers.values(), *leaving])
        finally:  # also when it was interrupted: what has not been let go of is left to the next call
            for number in [number for number, worker in workers.items() if worker.process is None]:
                del workers[number]
            leaving[:] = [worker for worker in leaving if worker.process is not None]
            with contextlib.ExitStack() as stack:  # each is closed, whatever another one raises
                for resource in resources:
                    stack.callback(resource.close)
    _log.debug("stopped the workers in %.3f s", time.monotonic() - began)


@dataclass(slots=True, kw_only=True)
class _Delivered(Arrival):
    delivery: Delivery | None = None

    def open(self, shard: int) -> Chunk:
        delivery, self.delivery = self.delivery, None
        try:
            self.items = [] if delivery is None else delivery.open()
        except Exception as error:
            add_note(
                error,
                f"torchpipe: one of the next {self.count} items of shard {shard} could not be rebuilt in the main "
                "process: its __reduce__ (of an exception: its args) gives arguments that its constructor refuses. "
                "Define __reduce__ in its class, or turn it into plain data inside the pipeline",
            )
            return Chunk(error=error)
        return self


def arrival_of(message: ChunkMessage, payload: memoryview, receiver: Receiver) -> Arrival:
    """One that cannot be received is an error in its place: what comes after it must not come in that."""
    try:
        delivery = receiver.arrive(message.layout, payload)
    except Exception as error:
        return Arrival(error=error)
    return _Delivered(
        count=message.count,
        nbytes=sum(message.layout.sizes),
        snapshot=message.snapshot,
        ended=message.ended,
        error=None if message.error is None else load_error(message.error),
        delivery=delivery,
    )
