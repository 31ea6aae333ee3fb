"""Finds what of a graph cannot be sent to a process, for an error that names it. Runs in the main process."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from reading_services.processes.graph_image import GraphImage
from torchpipe.errors import NotSerializableError

__all__ = ["what_fails"]

_MOST_LEVELS = 8  # of attributes of attributes
_OPEN_IT_THERE = "Open files, locks, connections and the like when they are first used, or in worker_init_fn"
_START_IT_THERE = (
    "A generator or other iterator cannot leave its process: give an object whose __iter__ starts it (a class with "
    "def __iter__(self): yield ...)"
)


def what_fails(named: Iterable[tuple[str, Any]], dump: Callable[[Any], Any] | None = None) -> str | None:
    """Which of the values, or what inside of it, cannot be pickled, and what to do. None if each of them can.

    ``dump`` raises for what cannot be; None: as for a process.
    """
    dump = dump or _make_image
    for name, value in named:
        failure = _failure(value, dump)
        if failure is None:
            continue
        path, owner = [name], value
        while len(path) < _MOST_LEVELS:
            attributes = list(getattr(value, "__dict__", {}).items())
            inner = next(
                ((key, part, bad) for key, part in attributes if (bad := _failure(part, dump)) is not None), None
            )
            if inner is None:
                break
            owner, (key, value, failure) = value, inner
            path.append(key)
        if path[0] == "fetch" and len(path) > 1:  # users know what is in it
            path = path[1:]
        if path[:2] == ["worker_init_fn", "user_fn"]:
            del path[1]
        what = f"its {path[0]}, {value!r:.200},"
        if len(path) > 1:
            what = f"attribute {path[-1]!r} of its {'.'.join(path[:-1])} ({type(owner).__name__})"
        if isinstance(failure, NotSerializableError):  # which says why, and what to do
            return f"{what} {failure}"
        begun = isinstance(value, Iterator) and not isinstance(value, io.IOBase)
        advice = _START_IT_THERE if begun else _OPEN_IT_THERE
        return f"{what} cannot be pickled ({type(failure).__name__}: {failure}). {advice}"
    return None


def _failure(value: Any, dump: Callable[[Any], Any]) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error
    return None


def _make_image(value: Any) -> None:
    GraphImage.of(value).close()
