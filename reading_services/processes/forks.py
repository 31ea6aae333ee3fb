"""Forks of this process by the user's code: what a child sees of shared memory stays as it was at the fork.

Runs in every process of the runtime. A child that holds an item of shared memory looks at the same pages as this
process, and nobody may write there while it lives. At a fork, all memory that is lent out is noted; when it comes back
it is kept until the child is gone.

A pipe tells: the child, and what it forks itself, keep its end for writing; this process reads the end of file when the
last of them has ended, or runs another program. At each fork, those that are over are forgotten: there are never more
pipes than children that live. A child that closes all its descriptors counts as ended; one that another thread forks in
the same moment keeps this fork's pipe as well, and memory is kept until both have ended.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Fork", "Lent"]


class Fork:
    """A fork: ``over`` when no process that came of it is left."""

    def __init__(self) -> None:
        self._is_over = False
        self._read_fd = self._write_fd = -1
        try:
            self._read_fd, self._write_fd = os.pipe()
        except OSError:  # no descriptor is left: the child counts as one that does not end
            return
        os.set_blocking(self._read_fd, False)
        self._close = weakref.finalize(self, os.close, self._read_fd)
        self._close.atexit = False  # what is let go of at exit still asks

    @property
    def over(self) -> bool:
        if self._is_over or self._read_fd < 0:
            return self._is_over
        try:
            self._is_over = os.read(self._read_fd, 1) == b""
        except BlockingIOError:
            return False
        self._close()
        return True

    def go_on_in_parent(self) -> None:
        if self._write_fd >= 0:
            os.close(self._write_fd)

    def go_on_in_child(self) -> None:
        """The other end stays open as long as the process lives."""
        if self._read_fd >= 0:
            self._read_fd = -1
            self._close()


class Lent:
    """Memory that users look at, between :meth:`lend` and :meth:`take_back`, and perhaps in forked children longer."""

    def __init__(self) -> None:
        self._forks: list[Fork] = []

    def lend(self) -> None:
        _lent[id(self)] = self
        self._forks += _under_way.values()

    def take_back(self) -> None:
        """Nobody in this process looks at it any more. Idempotent."""
        _lent.pop(id(self), None)

    def note(self, fork: Fork) -> None:
        self._forks = [other for other in self._forks if not other.over]
        self._forks.append(fork)

    @property
    def seen_by_children(self) -> bool:
        """True while a forked child lives that may look at it."""
        self._forks = [fork for fork in self._forks if not fork.over]
        return bool(self._forks)


_lent: dict[int, Lent] = {}  # what is lent out, by id
_under_way: dict[int, Fork] = {}  # by thread: other threads lend and take back meanwhile


def _before() -> None:
    if not _lent:
        return
    fork = _under_way[threading.get_ident()] = Fork()
    for lent in list(_lent.values()):
        lent.note(fork)


def _in_parent() -> None:
    fork = _under_way.pop(threading.get_ident(), None)
    if fork is not None:
        fork.go_on_in_parent()


def _in_child() -> None:
    fork = _under_way.get(threading.get_ident())
    _under_way.clear()
    _lent.clear()  # the parent takes it back
    if fork is not None:
        fork.go_on_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
