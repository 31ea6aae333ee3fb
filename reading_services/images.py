"""The image that workers are sent, pickled once, or an error that names the culprit. Runs in the main process."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeVar, cast

from torchpipe.errors import LargeGraphWarning, NotSerializableError
from torchpipe.machine import format_bytes
from torchpipe.node.traits import DataPipe, is_node, node_name, with_inputs
from torchpipe.node.user_warnings import warn_user

__all__ = ["image_of"]

Image = TypeVar("Image")

_MOST_LEVELS = 8  # of attributes of attributes
_MUCH_BYTES = 100_000_000  # for each worker
_MANY_ITEMS = 1_000_000
_FEW_ITEMS = 100  # of a container, of which each is looked into
_MOST_OBJECTS = 10_000
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
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
    """The image that workers are sent: ``make(graphs, *others)``. ``nodes``: those of the graphs, inputs first.

    Raises: NotSerializableError, naming the first node, with its attribute, or which of the others cannot be sent
    ``to`` a worker. ``advice``: another way; ``name``: a node's name for messages. A LargeGraphWarning names the part
    that makes it large.
    """
    nodes = list(nodes)
    try:
        image = make(graphs, *others.values())
    except Exception as error:
        for node in nodes:
            singly = with_inputs(node, lambda _: cast("DataPipe", _Input()))
            if (what := _what_fails(vars(singly).items(), make)) is not None:
                raise NotSerializableError(f"{name(node)} cannot be sent to {to}: {what}{advice}") from error
        what = _what_fails(others.items(), make) or f"{type(error).__name__}: {error}"
        raise NotSerializableError(f"the loader cannot be sent to {to}: {what}{advice}") from error
    _tell_if_large(_sent_bytes(image), nodes, to, name)
    return image


def _sent_bytes(image: Any) -> int | None:
    """The number of bytes that each worker is sent; None if it is forked and is sent nothing."""
    return len(image) if isinstance(image, bytes) else getattr(image, "sent_bytes", None)


def _tell_if_large(sent_bytes: int | None, nodes: Iterable[DataPipe], to: str, name: Callable[[DataPipe], str]) -> None:
    if sent_bytes is not None and sent_bytes < _MUCH_BYTES:
        return
    found = [_longest(node) for node in nodes]
    path, owner, longest = max(found, key=lambda one: len(one[2]))
    once = "torchpipe.shared_list(items), of texts, numbers or tuples of them, is"
    if isinstance(longest, dict | set | frozenset):
        values = " and one of its values in that order" if isinstance(longest, dict) else ""
        verb = "are" if values else "is"
        once = f"A torchpipe.shared_list of its sorted keys, in which bisect finds a place,{values} {verb}"
    what = f"`{path}` of {name(owner)}, a {type(longest).__name__} of {len(longest):,} items"
    if sent_bytes is not None:
        most = f": most of it may be {what}" if len(longest) >= _MANY_ITEMS // 10 else ""
        text = f"{format_bytes(sent_bytes)} are sent to {to}, to each a copy of its own{most}"
    elif len(longest) >= _MANY_ITEMS:
        text = f"each forked worker comes to have a copy of {what}, since looking at an item writes beside it"
    else:
        return
    warn_user(
        f"{text}. {once} in memory once for all processes; so are arrays and tensors",
        LargeGraphWarning,
    )


def _longest(node: DataPipe) -> tuple[str, DataPipe, Any]:
    """The longest container of objects in the attributes of ``node``, and where it is."""
    found: tuple[str, Any] = "", ()
    waiting, seen = deque[tuple[str, Any]](vars(node).items()), set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen or path.count(".") > _MOST_LEVELS or is_node(value):
            continue
        seen.add(id(value))
        if type(value) in _CONTAINERS:
            if len(value) > len(found[1]):
                found = path, value
            if len(value) <= _FEW_ITEMS:
                items = value.items() if type(value) is dict else enumerate(value)
                waiting += [(f"{path}[{key!r:.40}]" if type(key) in (int, str) else path, part) for key, part in items]
        elif not isinstance(value, type | ModuleType):
            inner = "" if path == "fetch" else f"{path}."  # users know what is in it
            with suppress(Exception):  # an object of the user's may have attributes of its own kind
                waiting += [(f"{inner}{key}", part) for key, part in vars(value).items()]
    return found[0], node, found[1]


class _Input:
    """Stands for a node's input while the node alone is being pickled."""


def _what_fails(named: Iterable[tuple[str, Any]], dump: Callable[[Any], Any]) -> str | None:
    """The value, or the part of one, that cannot be pickled, and the next step. None if each of them can."""
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
