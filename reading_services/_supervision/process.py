"""One worker process, its connection and its page, from its start until it is let go of.

Runs in the main process. Owner: the supervisor, which alone creates and ends these.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

from reading_services._supervision import fork_server
from reading_services._supervision.main_module import NO_GUARD_CODE, WORKER_NAME, check_main_module, missing_guard
from reading_services._supervision.post_mortem import PostMortem
from reading_services._supervision.vital_signs import VitalSigns
from reading_services._transport.arena import Arena
from reading_services._transport.channel import SocketChannel, socket_pair
from reading_services._transport.graph_image import GraphImage
from reading_services._transport.payloads import Receiver
from reading_services._transport.status_page import Field, StatusPage
from reading_services._workers.worker import WorkerSetup, run_worker
from torchpipe.node.failures.failure import add_note
from torchpipe.stats.sheet import STARTING

__all__ = ["WorkerProcess", "check_room_for_files"]

_START_FILES = 24
_REAP_S = 1.0
_POLL_S = 1e-3
_TOLD_S = 0.25  # for a thread that has waited for a process, to say how it ended
_UNKNOWN_CODE = 255  # what multiprocessing says if a forkserver cannot be asked any more
_OWN_SIGNALS = frozenset(
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ")
    if hasattr(signal, name)
)
# Those that a process sends to itself, and a worker too
_FROM_WITHIN = _OWN_SIGNALS | {
    getattr(signal, name) for name in ("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGPIPE", "SIGCHLD") if hasattr(signal, name)
}


class WorkerProcess:
    """Started by the constructor's caller with :meth:`start`; ended by ``stop_all`` or found dead.

    ``target(setup, socket, page, arena, *extra)`` is what it runs, by default a worker's loop.
    ``node_names``: those that it runs, by their numbers.
    """

    def __init__(
        self,
        worker: int,
        context: BaseContext,
        graph: GraphImage,
        node_names: Mapping[int, str],
        *,
        name: str,
        target: Callable[..., None] = run_worker,
        extra: tuple[Any, ...] = (),
    ) -> None:
        check_room_for_files(name)  # first, since half of what follows could not be taken back
        self.worker = worker
        self.name = name
        self._target = target
        self._extra = extra
        self.failed = False  # it has said why it cannot go on, and ends by itself
        self.lost = False  # somebody else has waited for it
        self.silenced = False  # killed because it showed no sign of life
        self.stuck = False  # killed because it could not even begin
        self._context: Any = context
        self._graph = graph
        self._node_names = node_names
        self.page = StatusPage(nodes=max(node_names, default=-1) + 1)
        self.signs = VitalSigns(self.page)
        self.arena = Arena()
        self.receiver = Receiver(self.arena)
        ours, self._theirs = socket_pair()
        self.channel = SocketChannel(ours, queued=True)
        self.process: Any = None
        self.pid = 0  # until it has been started
        # Under forkserver: of the process, of which the server tells only if it lives; of a server that died, so that
        # there is no process: pid and exit code
        self._handle: int | None = None
        self._forked_by: int | None = None  # the server's pid
        self._server: tuple[int, int | None] | None = None

    def start(self, inherited_fds: tuple[int, ...]) -> None:
        """Start the process. ``inherited_fds`` are the main process's ends that a forked child must let go of.

        If the server dies that is to fork it, it is found dead as any other one, by whoever waits for it.
        """
        method = self._context.get_start_method()
        check_main_module(self.name, method)
        setup = WorkerSetup(
            worker=self.worker,
            graph=self._graph,
            parent_pid=os.getpid(),
            # The signal comes when the starting *thread* ends. A forkserver's child has the server for a parent, which
            # lives until the last of its children has ended.
            death_signal=threading.current_thread() is threading.main_thread(),
            inherited_fds=(*inherited_fds, self.channel.fileno()) if method == "fork" else (),
            ignored_signals=(handled := _signals_of_the_main_process()),
        )
        self.process = self._context.Process(
            target=self._target,
            args=(setup, self._theirs, self.page, self.arena, *self._extra),
            name=WORKER_NAME + self.name.replace(" ", "-"),
            daemon=True,
        )
        try:
            self.page.times.turn_to(STARTING)
            if method != "fork":
                resource_tracker.ensure_running()  # it unblocks SIGINT in the end: not within the block below
            with _ctrl_c_held(handled):
                if method == "forkserver":
                    fork_server.ensure_running()
                else:
                    self.process.start()
            if method == "forkserver":
                try:
                    self.process.start()  # waits until the server has imported torch: Ctrl-C need not wait for that
                except (ConnectionError, EOFError, ChildProcessError):
                    self._blame_the_server()
                    return
                self._handle, self._forked_by = _handle_of(self.process.pid), fork_server.pid()
            self.pid = int(self.process.pid)
        except BaseException:
            self._abandon()
            raise
        finally:
            self._theirs.close()
        self.signs.started(self.pid, forked=method == "fork")

    def _blame_the_server(self) -> None:
        """It has died when it was asked. Perhaps it has forked, and died before it told."""
        self.process, self._server = None, fork_server.how_it_ended(_REAP_S)
        self.channel.socket.shutdown(socket.SHUT_RDWR)

    def _abandon(self) -> None:
        """The start has failed, or was interrupted: the process may be there or not."""
        if self.process is not None and self.process.pid is not None:
            self.kill()
            self.join(_REAP_S)
        else:
            self.process = None
        self.release()

    @property
    def sentinel(self) -> int | None:
        """What can be read from when the process has ended. None if it could not be started."""
        return None if self._server is not None else int(self.process.sentinel)

    @property
    def exitcode(self) -> int | None:
        """As multiprocessing says it; if it could not be started, of the server that was to fork it."""
        return self.process.exitcode if self._server is None else self._server[1]

    def is_alive(self) -> bool:
        """Also false after :meth:`release`, which another thread may call meanwhile."""
        process = self.process
        try:
            if process is None or process.pid is None:
                return False
            popen = process._popen
            if popen.method == "forkserver":
                # The server tells once how it ended, and not to whoever merely asks whether it has. Once somebody has
                # heard it, nothing more may come
                return popen.returncode is None and not connection.wait([process.sentinel], 0)
            if not process.is_alive():
                return False
            self.lost = self.lost or _is_lost(process)
            return popen.returncode is None
        except ValueError:  # closed
            return False

    def join(self, timeout_s: float) -> None:
        """Wait for its end. multiprocessing's own waits for ever for one that has closed its sentinel and lives on."""
        process, deadline = self.process, time.monotonic() + timeout_s
        if process is None or process.pid is None:  # not started
            return
        connection.wait([process.sentinel], timeout_s)
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def kill(self) -> None:
        if self.is_alive():  # else its number may be somebody else's by now
            self.process.kill()

    def examine(self, *, dispatcher: bool, num_shards: int | None, batches: bool = False) -> PostMortem:
        """How the process ended and what it was at. One that has closed its connection and lives on is killed."""
        lane, index, count, node, begun = (
            self.page[slot] for slot in (Field.LANE, Field.INDEX, Field.COUNT, Field.NODE, Field.BEGUN)
        )
        # One that was killed for its silence died when it fell silent
        end_s = self.signs.seen_at if self.silenced else time.monotonic()
        self.join(_REAP_S)
        if self.is_alive():
            self.kill()
            self.join(_REAP_S)
        lane = -1 if num_shards is None else lane
        return PostMortem(
            number=self.worker,
            name=self.name if self._server is None else f"the server that was to fork {self.name}",
            pid=self.pid if self._server is None else self._server[0],
            exitcode=self.exitcode,
            cause=self._cause_of_death(),
            own=self._died_by_itself(),
            dispatcher=dispatcher,
            lane=lane,
            shard=-1 if num_shards is None or lane < 0 else lane % num_shards,
            items=range(index, index + max(1, count)),
            begun_s=max(1e-3, end_s - begun / 1e9) if begun and lane >= 0 else None,
            node=self._node_names.get(node),
            batches=batches,
        )

    def missing_guard(self) -> RuntimeError | None:
        """What to raise if the process ended because the user's script started a loader while it was being imported."""
        if self.signs.ready or self.exitcode != NO_GUARD_CODE:
            return None
        return missing_guard(self.name, self._context.get_start_method())

    def _cause_of_death(self) -> str:
        if self.stuck:
            return (
                "slept from the moment it was forked, waiting for a lock that another thread held then, and was killed "
                '(multiprocessing_context="forkserver" forks no process with threads)'
            )
        if self.lost:
            return (
                "has ended (how, only whoever waited for it knows: this program's os.waitpid(), or SIGCHLD is ignored)"
            )
        if self.exitcode is None:
            return "was killed, and has yet to end" if self.silenced else "has closed its connection but is still alive"
        if self._server_is_gone():
            return "has ended with the server that had forked it"
        return _how(self.exitcode)

    def _died_by_itself(self) -> bool:
        """Has it brought about its end, as far as its exit code tells?

        Somebody else's SIGKILL and one for want of memory look alike: neither is its own doing for certain.
        """
        if self.lost or self.silenced:
            return self.stuck  # which each of its successors may be, if the lock is never released
        if self._server_is_gone():
            return False
        code = self.exitcode
        return self._server is None if code is None else code >= 0 or -code in _OWN_SIGNALS

    def _server_is_gone(self) -> bool:
        """Has it forked this process, and died before it told how that ended? An exit code may be the same number."""
        if self._forked_by is None or self.exitcode != _UNKNOWN_CODE:
            return False
        return fork_server.is_gone(self._forked_by, _REAP_S)

    def release(self) -> None:
        """Let go of the connection, the page and the process handle. The process has ended or is killed. Idempotent."""
        self.channel.close()
        self._theirs.close()
        self.page.close()
        self.receiver.close()
        self.arena.close()
        process = self.process
        if process is None or process.pid is None:
            return
        # Not by its exit code, which is None as long as a thread that has waited for it has yet to note it
        if not self.is_alive():
            process.join()  # not closed: users may hold it, and ask how it ended
            self._kill_an_orphan()
            if process._popen.returncode is not None:
                process._popen.close()  # its pipes
            self.process = None
        else:  # the kernel takes its time on a busy machine, and nobody else would wait for it
            with suppress(RuntimeError):  # too late for threads: the program ends
                threading.Thread(target=self._reap, name=f"torchpipe reaper of {self.pid}", daemon=True).start()

    def _kill_an_orphan(self) -> None:
        """If the server has died, its processes are taken for dead, though one may be within a long item."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):  # it has ended
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)

    def _reap(self) -> None:
        while self.is_alive():
            self.join(_REAP_S)
        self.release()


def _handle_of(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel; or it has ended
        return None


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_lost(process: Any) -> bool:
    """Has a child ended without a word to multiprocessing, which goes on taking it for alive?

    Whoever waits for it first learns how it ended: the program or a library of it, by ``os.waitpid(-1, ...)``, or the
    kernel, where SIGCHLD is ignored. Or another thread, by multiprocessing, which then has yet to note it.
    """
    popen = process._popen
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        deadline = time.monotonic() + (0 if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN else _TOLD_S)
        while popen.returncode is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if popen.returncode is not None:
            return False
        popen.returncode = _UNKNOWN_CODE
        return True
    if pid:
        popen.returncode = os.waitstatus_to_exitcode(status)
    return False


def _signals_of_the_main_process() -> tuple[int, ...]:
    """Those from outside that a function of the user's handles: they may go to the whole group, and are not meant for
    workers. (SLURM's USR1 before a job ends, say, at which that function saves a checkpoint.)
    """
    own = {signal.SIGINT, signal.SIGTERM, *_FROM_WITHIN}
    return tuple(number for number in signal.valid_signals() - own if callable(signal.getsignal(number)))


@contextmanager
def _ctrl_c_held(others: tuple[int, ...] = ()) -> Iterator[None]:
    """Let a Ctrl-C wait for the end of this block.

    While a process is being forked, Python swallows the KeyboardInterrupt in a hook, and the program would go on. The
    signal is also blocked, and so are ``others``: which the child inherits until it ignores them. Before that, a forked
    one would run the main process's handlers, and a spawned one end, or print a traceback of its imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handler, mask = signal.getsignal(signal.SIGINT), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    # Python runs handlers in the main thread alone, so that is where one could raise.
    here = threading.current_thread() is threading.main_thread() and callable(handler)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if here:
            signal.signal(signal.SIGINT, handler)

    try:
        try:
            if here:
                signal.signal(signal.SIGINT, lambda number, _: came.append(number))
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, *others])
            yield
        finally:
            restore()
    finally:  # once more, as the handler of another signal may have raised in the midst of it
        restore()
        if came:
            signal.raise_signal(signal.SIGINT)


def check_room_for_files(name: str) -> None:
    """Raises: OSError if this process cannot open what ``name`` takes: more than any start method opens at once."""
    opened: list[socket.socket] = []
    try:
        for _ in range(_START_FILES // 2):
            opened += socket.socketpair()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            whose = "this process" if error.errno == errno.EMFILE else "the machine"
            add_note(
                error,
                f"torchpipe: {name} was not started, which takes {_START_FILES} descriptors for a moment: {whose} "
                "has nearly as many files open as it may (`ulimit -n`). Raise that limit, use fewer workers, or look "
                "for files that are opened and never closed",
            )
        raise
    finally:
        for end in opened:
            end.close()
