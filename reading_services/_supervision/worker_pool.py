"""The processes of a supervisor, and the one wait for all that can happen to them.

Runs in the main process, in the supervisor's threads, one at a time except for :meth:`WorkerPool.select` and
:meth:`WorkerPool.wake`. Owns the processes with their sockets and pages, the selector and the wake-up sockets. The wait
covers messages, room in sockets, the wake-up and all process sentinels; it ends with any of them, or after the timeout.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

from reading_services._supervision.accounts import Accounts
from reading_services._supervision.process import WorkerProcess
from reading_services._supervision.stop_ladder import stop_all
from reading_services._transport.channel import ChannelClosed, Frame
from reading_services._transport.messages import Message
from torchpipe.ahead.at_exit import begin_exit, is_cut_off
from torchpipe.errors import IteratorInvalidated

__all__ = ["WorkerPool"]

_IN_USE_S = 5.0  # a call takes as long as starting a process does

_log = logging.getLogger("torchpipe")


class WorkerPool:
    """Processes by number. ``close`` ends them all; a forgotten pool ends with the object, or at exit.

    ``accounts`` has what they have done. ``resources`` are closed with the pool. ``lock`` is held by whoever uses it,
    except in :meth:`select`.
    """

    def __init__(self, lock: threading.RLock, *resources: Any) -> None:
        self._processes: dict[int, WorkerProcess] = {}
        self.accounts = Accounts()
        self._measures_nodes = False
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()  # objects, which close by themselves after a Ctrl-C in here
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        resources = (self._woken, self._waker, *resources)
        self._owned = (os.getpid(), threading.RLock(), self._processes, self._selector, resources)
        self._finalizer = weakref.finalize(self, _finalize_forgotten, lock, *self._owned)
        # Before multiprocessing's own hook, which asks daemonic processes to end and waits for ever for one that is
        # stopped or deaf; and at the end of a process that multiprocessing itself has started, which has no other hook.
        util.Finalize(self, self._finalizer, exitpriority=0)
        _tell_of_the_end()

    def __contains__(self, number: int) -> bool:
        return number in self._processes

    def __iter__(self) -> Iterator[WorkerProcess]:
        # A copy: another thread may ask for the processes while one is being replaced. One that is being started has no
        # number yet: whoever kills what is given here would kill their own process group
        return iter([worker for _, worker in sorted(self._processes.items()) if worker.pid])

    def is_ready(self, number: int) -> bool:
        """Has the process been started, and said that it has?"""
        return number in self._processes and self._processes[number].signs.ready

    def start(self, worker: WorkerProcess, *inherited_fds: int) -> None:
        """Start ``worker``, which takes the place of its number. ``inherited_fds`` are closed in a forked child."""
        self._check_not_cut_off()
        worker.page.times.wanted = self._measures_nodes
        others = [other.channel.fileno() for other in self]
        self._processes[worker.worker] = worker  # first: whatever a Ctrl-C leaves of it is ended with the others
        try:
            worker.start((*others, self._woken.fileno(), self._waker.fileno(), *inherited_fds))
        except Exception:
            if worker.process is None:  # else it was a signal's handler that raised, and the process is there
                del self._processes[worker.worker]
            raise
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)
        if worker.sentinel is not None:
            self._selector.register(worker.sentinel, selectors.EVENT_READ, worker)

    def measure_nodes(self, wanted: bool) -> None:
        """Let processes, and those that will be started, time the nodes of passes that they begin; or not."""
        self._measures_nodes = wanted
        for worker in self:
            worker.page.times.wanted = wanted

    def last_words(self, worker: WorkerProcess) -> list[Frame]:
        """What a process that has ended had sent and nobody has received yet."""
        frames: list[Frame] = []
        try:
            while (frame := worker.channel.receive(wait=False)) is not None:
                frames.append(frame)
        except ChannelClosed:
            pass
        return frames

    def bury(self, number: int) -> None:
        """Let go of a process that has ended."""
        worker = self._processes[number]
        self._selector.unregister(worker.channel)
        if worker.sentinel is not None:
            self._selector.unregister(worker.sentinel)
        self.accounts.buried(worker)
        worker.release()
        del self._processes[number]

    def send(self, number: int, message: Message) -> None:
        """Send, now or when there is room. To a process that has died, or is none, nothing: the wait will tell."""
        worker = self._processes.get(number)
        if worker is None:
            return
        try:
            worker.channel.send(message)
            self._watch_outbox(worker)
        except ChannelClosed:
            pass

    def select(self, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for anything to happen, for :meth:`happened`. Other threads may send and start processes meanwhile."""
        ready = self._selector.select(timeout_s)
        self._check_not_cut_off()
        return ready

    def happened(
        self, ready: list[tuple[selectors.SelectorKey, int]]
    ) -> Iterator[tuple[WorkerProcess, list[Frame], bool]]:
        """(process, what has arrived whole, has it ended?) for each that something happened to.

        What arrived of a process that has ended was sent whole, so it is as good as any.
        """
        for key, events in ready:
            worker: WorkerProcess | None = key.data
            if worker is None:
                self._drain_wake_up()
                continue
            if self._processes.get(worker.worker) is worker:  # not buried a moment ago, in this same round
                frames: list[Frame] = []
                gone = key.fd == worker.sentinel
                try:
                    if events & selectors.EVENT_WRITE:
                        worker.channel.flush()
                        self._watch_outbox(worker)
                    while (frame := worker.channel.receive(wait=False)) is not None:
                        frames.append(frame)
                except ChannelClosed:
                    gone = True
                yield worker, frames, gone

    def kill_silent(self, timeout_s: float | None) -> list[WorkerProcess]:
        """Kill those that have shown no sign of life for so long, or cannot even begin: which they are."""
        silent = []
        for worker in self:
            stuck = worker.signs.look_stuck_in_fork()
            if not (stuck or (timeout_s is not None and worker.signs.missing_for(timeout_s))):
                continue
            worker.silenced, worker.stuck = True, stuck
            if not stuck:
                _log.warning(
                    "%s (pid %d) showed no sign of life for %g s: killing it (was it stopped, or does native code keep "
                    "the interpreter lock?)",
                    worker.name,
                    worker.pid,
                    timeout_s,
                )
            worker.kill()
            silent.append(worker)
        return silent

    def wake(self) -> None:
        """Let a wait in another thread end at once. Thread-safe."""
        with contextlib.suppress(OSError):  # full: it is awake; or closed
            self._waker.send(b"x")

    def close(self) -> None:
        """End all processes: about 3 s at most. Idempotent. What an interrupt leaves here ends at exit."""
        if self._finalizer.alive:
            _finalize(*self._owned)
            self._finalizer.detach()

    def _check_not_cut_off(self) -> None:
        """At exit, processes that have ended have not died, and are not replaced. Raises: IteratorInvalidated."""
        if not self._finalizer.alive and is_cut_off():
            raise IteratorInvalidated("the program ends, and has ended the workers")

    def _drain_wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(64):
                pass

    def _watch_outbox(self, worker: WorkerProcess) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.channel.has_outbox else 0)
        self._selector.modify(worker.channel, events, worker)


_tells_of_the_end_of = 0  # a process


def _tell_of_the_end() -> None:
    """Before anything is ended at exit: last registered, first called."""
    global _tells_of_the_end_of
    atexit.unregister(begin_exit)
    atexit.register(begin_exit)
    if _tells_of_the_end_of != os.getpid():  # what multiprocessing has started calls nothing of atexit's
        _tells_of_the_end_of = os.getpid()
        util.Finalize(None, begin_exit, exitpriority=1)


def _finalize_forgotten(in_use: threading.RLock, pid: int, *owned: Any) -> None:
    """When the pool is collected, or at exit: then a daemon thread may be in the midst of using it."""
    if os.getpid() != pid:  # where the lock may have been taken for ever
        return
    free = in_use.acquire(timeout=_IN_USE_S)
    try:
        _finalize(pid, *owned)
    finally:
        if free:
            in_use.release()


def _finalize(
    pid: int,
    lock: threading.RLock,
    processes: dict[int, WorkerProcess],
    selector: selectors.BaseSelector,
    resources: tuple[Any, ...],
) -> None:
    """End everything that a pool owns. Never in a forked child. Idempotent."""
    if os.getpid() != pid:
        return
    began = time.monotonic()
    with lock:  # a thread may be at it when the process exits; it takes as long as the stop ladder at most
        try:
            stop_all(list(processes.values()))
        finally:  # also when it was interrupted: if that was before it had begun, what lives is left to the next call
            for number, worker in list(processes.items()):
                if not worker.is_alive():
                    del processes[number]
            selector.close()
            for resource in resources:
                resource.close()
    _log.debug("stopped the workers in %.3f s", time.monotonic() - began)
