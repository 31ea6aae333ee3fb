"""What workers are sent, pickled once, or an error that names what of it cannot be. Runs in the main process."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from torchpipe.errors import NotSerializableError
from torchpipe.node.traits import DataPipe, node_name, with_inputs

__all__ = ["image_of"]

Image = TypeVar("Image")

_MOST_LEVELS = 8  # of attributes of attributes
_OPEN_IT_THERE = "Open files, locks, connections and the like when they are first used, or in worker_init_fn"
_START_IT_THERE = (
    "A generator or other iterator cannot leave its process: give an object whose __iter__ starts it (a class with "
    "def __iter__(self): yield ...)"
)


def image_of(
    make: Callable[..., Image],
    nodes: Iterable[DataPipe],
    graphs: Any,
    *,
    to: str,
    advice: str = "",
    name: Callable[[DataPipe], str] = node_name,
    **others: Any,
) -> Image:
    """What workers are sent: ``make(graphs, *others)``. ``nodes``: those of the graphs, inputs first.

    Raises: NotSerializableError, naming the first node, with its attribute, or which of the others cannot be sent
    ``to`` a worker. ``advice``: what else can be done; ``name``: what a node is called.
    """
    try:
        return make(graphs, *others.values())
    except Exception as error:
        for node in nodes:
            singly = with_inputs(node, lambda _: cast("DataPipe", _Input()))
            if (what := _what_fails(vars(singly).items(), make)) is not None:
                raise NotSerializableError(f"{name(node)} cannot be sent to {to}: {what}{advice}") from error
        what = _what_fails(others.items(), make) or f"{type(error).__name__}: {error}"
        raise NotSerializableError(f"the loader cannot be sent to {to}: {what}{advice}") from error


class _Input:
    """Stands for a node's input while the node alone is being pickled."""


def _what_fails(named: Iterable[tuple[str, Any]], dump: Callable[[Any], Any]) -> str | None:
    """Which of the values, or what inside of it, cannot be pickled, and what to do. None if each of them can."""
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
