"""One process, its connection, its page and its shared memory, from its start until it is let go of.

Runs in the main process. Owner: ProcessPool, which alone creates and ends these. A pidfd tells whether it lives: also
of one that somebody else has waited for, or whose forkserver is gone.

Processes end in steps, from asking them to killing them. Each is bounded, so that all take 5 s at most.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from reading_services.engine.messages import Deal, Message, StartDispatch, StartEpoch
from reading_services.engine.workers import End, WorkerCounters
from reading_services.processes.arena import Arena
from reading_services.processes.channel import ChannelClosed, SocketChannel, socket_pair
from reading_services.processes.payloads import Receiver
from reading_services.processes.signals import ctrl_c_held, handled_signals, open_pidfd
from reading_services.processes.start_method import check_main_module
from reading_services.processes.status_page import Field, StatusPage
from reading_services.processes.wire import EndEpoch, Grant, Stop
from reading_services.processes.worker import WorkerSetup
from torchpipe.stats.sheet import STARTING

__all__ = ["ProcessWorker", "ask_to_stop", "stop_all"]

_REAP_S = 1.0
_DESCRIPTORS = 12  # that starting a process takes at most, for a moment
_STARTUP_S = 120.0  # importing torch included
_SERVER_GONE = 255  # what multiprocessing says of a process whose forkserver has died
_OWN_SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ")
)


class ProcessWorker:
    """A worker that is a process: see :class:`reading_services.engine.workers.Worker`.

    ``target(setup, socket, page, arena, *arguments)`` is what it runs. ``node_names``: those of its nodes, by their
    numbers. ``send`` takes a message to it.
    """

    def __init__(
        self,
        number: int,
        name: str,
        *,
        context: BaseContext,
        target: Callable[..., None],
        arguments: Sequence[Any],
        node_names: Mapping[int, str],
        send: Callable[[ProcessWorker, Message], None],
    ) -> None:
        self.number, self.name, self.ready = number, name, False
        self.silenced = False  # killed because it showed no sign of life
        self.stuck = False  # or because it got no further
        self.ignored = False  # nothing more is read of it
        self._context: Any = context
        self._target, self._arguments, self._node_names, self._send = target, arguments, node_names, send
        self.page = StatusPage(nodes=max(node_names, default=-1) + 1)
        self.arena = Arena()
        self.receiver = Receiver(self.arena)
        ours, self._theirs = socket_pair()
        self.channel = SocketChannel(ours, queued=True)
        self.process: Any = None
        self.pid = 0  # until it has been started
        self.handle: int | None = None
        self._close_handle: weakref.finalize[Any, Any] | None = None  # whatever a Ctrl-C leaves of the rest
        self._trouble: Exception | None = None  # why it could not be started
        self._beat, self._silent_s = -1, 0.0
        self._step: tuple[int, ...] | None = None  # what it has begun last
        self._at_it_s = 0.0  # for how long it was seen at that
        self._asked_at = time.monotonic()

    # --- what the engine says

    def begin(self, start: StartEpoch | StartDispatch, deals: Sequence[Deal] = ()) -> None:
        for deal in deals:
            self._send(self, deal)
        self._send(self, start)

    def grant(self, generation: int, lane: int, chunks: int) -> None:
        self._send(self, Grant(generation=generation, lane=lane, chunks=chunks))

    def deal(self, message: Deal) -> None:
        self._send(self, message)

    def end(self, generation: int) -> None:
        self._send(self, EndEpoch(generation=generation))

    def counters(self) -> WorkerCounters | None:
        try:
            return WorkerCounters(
                self.page.times.read(),
                self.page.sheet.read() if self.page.times.wanted else [],
                self.pid,
                self.page[Field.AGAIN],
            )
        except ValueError:  # its page has gone a moment ago
            return None

    # --- its life

    def start(self, inherited_fds: tuple[int, ...]) -> None:
        """Start the process. ``inherited_fds`` are the main process's ends that a forked child must let go of.

        If the forkserver dies that is to fork it, it is found dead as any other one, by whoever waits for it.
        """
        method, handled = self._context.get_start_method(), handled_signals()
        if method != "fork":
            check_main_module(self.name)
        setup = WorkerSetup(
            number=self.number,
            parent_pid=os.getpid(),
            # The signal comes when the starting *thread* ends. A forkserver's child has the server for a parent, which
            # lives until the last of its children has ended.
            death_signal=threading.current_thread() is threading.main_thread(),
            inherited_fds=(*inherited_fds, self.channel.fileno()) if method == "fork" else (),
            ignored_signals=handled,
        )
        self.process = self._context.Process(
            target=self._target,
            args=(setup, self._theirs, self.page, self.arena, *self._arguments),
            name="torchpipe-" + self.name.replace(" ", "-"),
            daemon=True,
        )
        try:
            self.page.times.turn_to(STARTING)
            _check_room()
            if method != "fork":
                resource_tracker.ensure_running()  # it unblocks SIGINT in the end: not within the block below
            try:
                with ctrl_c_held(handled):
                    if method == "forkserver":
                        forkserver.ensure_running()
                    else:
                        self.process.start()
                if method == "forkserver":
                    self.process.start()  # waits until the server has imported torch: Ctrl-C need not wait for that
            except (ConnectionError, EOFError, ChildProcessError) as error:
                if method != "forkserver":
                    raise
                self.process, self._trouble = None, error
                self.channel.socket.shutdown(socket.SHUT_RDWR)
                return
            self.pid = int(self.process.pid)
            self.handle, self._close_handle = open_pidfd(self, self.pid)
        except BaseException:  # it may be there or not
            if self.process is not None and self.process.pid is not None:
                self.process.kill()
                self.process.join(_REAP_S)
            self.process = None
            self.release()
            raise
        finally:
            self._theirs.close()

    def is_alive(self) -> bool:
        return not self.wait_end(0)

    def wait_end(self, timeout_s: float) -> bool:
        """True once it has ended, at the latest after so long."""
        handle = self.handle  # another thread may let go of it meanwhile
        if handle is None:
            return True
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))

    def signal(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.handle is not None:
            try:
                signal.pidfd_send_signal(self.handle, number)
            except ProcessLookupError:
                pass

    def is_missing(self, timeout_s: float | None) -> bool:
        """Has it shown no sign of life, or been at one and the same step of its work (``stuck``: an item, one that is
        made again, its start, an end), for ``timeout_s`` in which this side has been looking, four times or more?

        Before it is ready, no sign of life for 120 s. A time in which this side did not look does not count: both may
        have been stopped (Ctrl-Z, a container or a machine that is paused), or wait for a processor.
        """
        limit_s = timeout_s if self.ready else _STARTUP_S
        now, beat = time.monotonic(), self.page[Field.BEAT]
        step = self.page.step if self.ready else None
        if step is None or step != self._step:
            self._step, self._at_it_s = step, 0.0
        if limit_s is not None:
            self._silent_s += min(now - self._asked_at, limit_s / 3)
            self._at_it_s += 0.0 if step is None else min(now - self._asked_at, limit_s / 3)
        self._asked_at = now
        if beat != self._beat:
            self._beat = beat
            self.seen()
        # One that is stopped at its work has done it to nobody: that it shows life says that it hangs by itself
        self.stuck = limit_s is not None and self._at_it_s > limit_s and self._silent_s < limit_s / 2
        return limit_s is not None and (self._silent_s > limit_s or self.stuck)

    def seen(self) -> None:
        """It has shown a sign of life."""
        self._silent_s = 0.0

    def examine(self) -> End:
        """The end of the process, and its work then. One that has closed its connection and lives on is killed."""
        lane, index, count, node, begun = (
            self.page[slot] for slot in (Field.LANE, Field.INDEX, Field.COUNT, Field.NODE, Field.BEGUN)
        )
        if not self.wait_end(_REAP_S):
            self.signal(signal.SIGKILL)
            self.wait_end(_REAP_S)
        code = self._exitcode()
        return End(
            cause=self._cause(code),
            own=self._is_own(code),
            lane=lane,
            items=range(index, index + max(1, count)),
            begun=bool(begun) and lane >= 0,
            node=self._node_names.get(node),
            timed_out=self.stuck,
            pid=self.pid or None,
            exitcode=code,
        )

    def _exitcode(self) -> int | None:
        """The exit code as multiprocessing has it. None while the process lives, or if only another waiter knows."""
        if self.process is None or not self.wait_end(0):
            return None
        self.process.join(_REAP_S)
        code: int | None = self.process.exitcode
        return code

    def _cause(self, code: int | None) -> str:
        if self._trouble is not None:
            return f"could not be started ({type(self._trouble).__name__}: {self._trouble}; has the forkserver died?)"
        if self.stuck:
            return "was killed because it made no progress within the timeout"
        if code is None:
            return "was killed because it did not respond" if self.silenced else "has ended (with an unknown exit code)"
        server_gone = code == _SERVER_GONE and self._context.get_start_method() == "forkserver"
        return _how(code) + (", or its forkserver has died" if server_gone else "")

    def _is_own(self, code: int | None) -> bool:
        """True if it has ended by itself. Somebody else's SIGKILL and one for want of memory look alike: False."""
        if self.silenced:
            return self.stuck or not self.ready
        if code is None:
            return self._trouble is not None
        return code >= 0 or -code in _OWN_SIGNALS

    def release(self) -> None:
        """Let go of all that belongs to it. It has ended, or is killed. Idempotent."""
        self.channel.close()
        self._theirs.close()
        self.page.close()
        self.receiver.close()
        self.arena.close()
        self._exitcode()  # waits for it
        self.handle = None
        if self._close_handle is not None:
            self._close_handle()
        self.process = None  # not closed: users may hold it, and ask how it ended


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"


def _check_room() -> None:
    """Raises: OSError where a process may open too few descriptors more to start another one. multiprocessing, which
    finds that behind its first pipe, leaves that open.
    """
    with ExitStack() as stack:
        for _ in range(_DESCRIPTORS):  # files, since a file closes its descriptor wherever Ctrl-C strikes
            stack.enter_context(open(os.devnull, "rb", buffering=0))


_log = logging.getLogger("torchpipe")

_GRACE_S = 1.0
_KILLED_S = 3.0  # a killed process has no say in it: the kernel takes its time on a busy machine


def ask_to_stop(worker: ProcessWorker) -> None:
    """Let it end once it has made what it is at."""
    try:
        worker.channel.send(Stop())
    except ChannelClosed:
        pass
    worker.channel.close()  # ends one that waits for room in the socket


def stop_all(workers: Sequence[ProcessWorker]) -> None:
    """Ask, wait, terminate, kill, report: for all of them at once.

    An interrupt (Ctrl-C, a signal handler that raises) takes it straight to the last rung: nobody comes here again.
    """
    try:
        for worker in workers:
            ask_to_stop(worker)
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            if _all_ended(workers, number):
                break
    except BaseException:
        _all_ended(workers, signal.SIGKILL)
        raise
    finally:
        with ExitStack() as stack:  # each is let go of, whatever another one raises
            for worker in workers:
                if worker.is_alive():
                    _log.error(
                        "%s (pid %d) survived SIGKILL for %.1f s: does a file system not answer?",
                        worker.name,
                        worker.pid,
                        _KILLED_S,
                    )
                stack.callback(worker.release)


def _all_ended(workers: Sequence[ProcessWorker], number: int) -> bool:
    """True if all have ended, soon after this signal (0: none)."""
    if number:
        for worker in workers:
            worker.signal(number)
    deadline = time.monotonic() + (_KILLED_S if number == signal.SIGKILL else _GRACE_S)
    return all(worker.wait_end(deadline - time.monotonic()) for worker in workers)
