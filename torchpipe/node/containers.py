"""Look for objects inside the containers of an attribute, and replace them there. Runs in every process.

Looked through are lists, tuples, named tuples, dicts, ordered and default dicts, deques, simple namespaces and
dataclasses (other than functions), nested in each other. The search leaves a container after ``SHORT`` things in a
row that are nothing wanted and hold nothing wanted, goes no deeper than ``DEEP`` levels and looks at ``MOST`` things:
a list of a million file names costs microseconds.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torchpipe.state.copying import PLAIN

__all__ = ["DEEP", "PLAIN", "SHORT", "found_in", "replaced_in"]

SHORT, DEEP, MOST = 200, 50, 10_000

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_ROWS = (list, tuple, collections.deque)


def _parts(value: Any) -> Iterable[Any] | None:
    """The parts that the container ``value`` holds; None if it is none that is looked through."""
    kind = type(value)
    rows: Iterable[Any] = value
    if kind in _ROWS or _is_named_tuple(value):
        return rows
    if kind in _DICTS:
        rows = itertools.chain.from_iterable(value.items())
        return rows
    if kind is types.SimpleNamespace:
        return list(vars(value).values())
    if hasattr(kind, "__dataclass_fields__") and not isinstance(value, type) and not callable(value):
        return [getattr(value, item.name, None) for item in dataclasses.fields(value)]
    return None


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_make")


def _search(value: Any, wanted: Callable[[Any], bool]) -> Iterator[tuple[Any, list[int]]]:
    """Every wanted object in ``value``, with the ids of the containers around it."""
    levels: list[Iterator[Any]] = [iter((value,))]
    others = [0]  # in a row, of each level
    around: list[int] = []
    seen = 0
    while levels:
        for item in levels[-1]:
            plain = type(item) in PLAIN  # isinstance() of a node's class takes ten times as long
            if not plain and wanted(item):
                others[:] = [0] * len(others)
                yield item, around
                continue
            others[-1] += 1
            seen += 1
            if seen > MOST:
                return
            if others[-1] > SHORT:
                levels[-1] = iter(())
                break
            inner = not plain and len(around) < DEEP and id(item) not in around
            parts = _parts(item) if inner else None
            if parts is not None:
                levels.append(iter(parts))
                others.append(0)
                around.append(id(item))
                break
        else:
            levels.pop()
            others.pop()
            if around:
                around.pop()


def found_in(value: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Every object in ``value``, or ``value`` itself, that is ``wanted``, in order, as often as it is held."""
    for item, _around in _search(value, wanted):
        yield item


def replaced_in(value: Any, wanted: Callable[[Any], bool], replace: Callable[[Any], Any]) -> Any:
    """``value`` with every object that :func:`found_in` finds put through ``replace``.

    Containers around a replaced object are made anew, all else is the same object.
    """
    found: set[int] = set()
    holders: set[int] = set()
    for item, around in _search(value, wanted):
        found.add(id(item))
        holders.update(around)

    def change(item: Any) -> Any:
        if id(item) in found:
            return replace(item)
        return _made_anew(item, change) if id(item) in holders else item

    return change(value) if found else value


def _made_anew(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(change, value))
    if isinstance(value, tuple):
        return kind._make(map(change, value))
    if kind is collections.deque:
        return collections.deque(map(change, value), value.maxlen)
    if kind in _DICTS:
        made: Any = collections.defaultdict(value.default_factory) if kind is collections.defaultdict else kind()
        made.update((change(key), change(item)) for key, item in value.items())
        return made
    if kind is types.SimpleNamespace:
        return types.SimpleNamespace(**{name: change(item) for name, item in vars(value).items()})
    clone = copy.copy(value)
    for item in dataclasses.fields(value):
        if hasattr(value, item.name):
            object.__setattr__(clone, item.name, change(getattr(value, item.name)))  # frozen ones too
    return clone
