"""The end of the program, as a daemon thread sees it that still iterates a loader. Runs in the user's process.

When the main thread is done, Python calls the functions that are registered with ``atexit``, which end workers and
threads, and then freezes daemon threads wherever they are. In between, such a thread finds its workers gone. That is
neither a death nor an error of its own, and nothing may be started any more: it waits, without a lock, to be frozen.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["begin_exit", "hold_at_exit", "holding_at_exit", "is_cut_off"]

P = ParamSpec("P")
R = TypeVar("R")

_ends_in: tuple[int, int] | None = None  # the process and the thread that ends it


def begin_exit() -> None:
    """This thread ends the program: what it stops from now on is missed by nobody. Idempotent."""
    global _ends_in
    _ends_in = os.getpid(), threading.get_ident()


def is_cut_off() -> bool:
    """Is this a daemon thread of a program that another thread ends? Any other kind of thread is waited for."""
    if _ends_in is None or _ends_in[0] != os.getpid() or _ends_in[1] == threading.get_ident():
        return False
    return threading.current_thread().daemon


def hold_at_exit() -> None:
    """Never return in a thread that is cut off; else at once. Not to be called with a lock held."""
    if is_cut_off():
        threading.Event().wait()


def holding_at_exit(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, which a thread that is cut off neither begins nor leaves."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        hold_at_exit()
        try:
            return method(*args, **options)
        except BaseException:
            hold_at_exit()
            raise

    return call
