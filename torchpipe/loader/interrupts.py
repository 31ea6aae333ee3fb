"""What a signal's handler raises inside one of the standard library's waits comes out as itself.

Runs in the user's process. ``Condition.wait`` (in ``Event``, ``Thread.start`` too) lets go of its lock one instruction
before the ``try`` that takes it back, and taking it back can be interrupted as well: Ctrl-C there makes the ``with``
statement around the wait raise RuntimeError, as its lock is not held.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

__all__ = ["raise_what_struck", "raising_what_struck"]

P = ParamSpec("P")
R = TypeVar("R")

_NOT_HELD = {("release unlocked lock",), ("cannot release un-acquired lock",)}  # what Lock and RLock say
_WAITING = ("threading", "torchpipe", "reading_services")  # where: in a user's code it is a user's mistake


def raise_what_struck(error: BaseException) -> None:
    """Raise what the handler has raised, if ``error`` is a lock's complaint that came of it."""
    found = error
    while type(found) is RuntimeError and found.args in _NOT_HELD and found.__context__ is not None:
        if not _raised_in(found.__traceback__).startswith(_WAITING):
            break
        found = found.__context__
    if found is not error:
        raise found from None


def raising_what_struck(method: Callable[P, R]) -> Callable[P, R]:
    """``method``, with what a handler raises in it as itself."""

    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return method(*args, **options)
        except RuntimeError as error:
            raise_what_struck(error)
            raise

    return call


def _raised_in(traceback: TracebackType | None) -> str:
    """The name of the module."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__", ""))
