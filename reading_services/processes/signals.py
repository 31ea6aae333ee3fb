"""Signals while a process is being started: Ctrl-C waits, and those that the program handles stay its own.

Runs in the main process.

A descriptor that stands for a process: it says whether that one lives, and signals it and no other.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ctrl_c_held", "handled_signals", "open_pidfd", "pidfd_of"]

# Those that a process sends to itself, and a worker too
_FROM_WITHIN = frozenset(
    getattr(signal, name)
    for name in (
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGXCPU", "SIGXFSZ"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGPIPE", "SIGCHLD"),
    )
)


def handled_signals() -> tuple[int, ...]:
    """The signals from outside that a function of the user's handles: they may go to the whole group, and are not meant
    for workers. (SLURM's USR1 before a job ends, say, at which that function saves a checkpoint.)
    """
    own = {signal.SIGINT, signal.SIGTERM, *_FROM_WITHIN}
    return tuple(number for number in signal.valid_signals() - own if callable(signal.getsignal(number)))


@contextmanager
def ctrl_c_held(others: tuple[int, ...] = ()) -> Iterator[None]:
    """Let a Ctrl-C wait for the end of this block.

    While a process is being forked, Python swallows the KeyboardInterrupt in a hook, and the program would go on. The
    signal is also blocked, and so are ``others``: which the child inherits until it ignores them. Before that, a forked
    one would run the main process's handlers, and a spawned one end, or print a traceback of its imports.
    """
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


def pidfd_of(pid: int) -> int:
    """A descriptor of a process. Raises: ProcessLookupError for one that has ended and was waited for; OSError, with
    the way out, where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        number = getattr(error, "errno", errno.ENOSYS)
        if number not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        raise OSError(
            number,
            "worker processes are watched by pidfd_open, which this kernel (Linux before 5.3) or sandbox refuses: use "
            'worker threads (DataLoader(..., worker_method="thread")) or no workers',
        ) from error


def open_pidfd(owner: object, pid: int) -> tuple[int | None, weakref.finalize[..., object] | None]:
    """(the descriptor, what closes it); it is closed with ``owner`` at the latest. None if the process has ended, and
    somebody has waited for it.
    """
    with ctrl_c_held():  # nobody would close what is not held yet
        try:
            handle = pidfd_of(pid)
        except ProcessLookupError:
            return None, None
        return handle, weakref.finalize(owner, os.close, handle)
