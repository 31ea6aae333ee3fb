"""The parts of a value: the entries of a container, and the attributes of an object. Runs in every process.

No method of a user's class is called, but for properties named ``__dict__``: of classes that are derived from
containers, the containers' own methods are.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["CONTAINERS", "PLAIN", "ROWS", "attributes_of", "entries_of", "members_of", "walk_parts"]

ROWS: tuple[Any, ...] = (list, tuple, deque, set, frozenset)
"""Containers without keys."""
CONTAINERS: tuple[type, ...] = (dict, *ROWS)
PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types of what holds nothing, and is held most."""
_members: WeakKeyDictionary[type, list[tuple[str, Any]]] = WeakKeyDictionary()


def entries_of(value: Any) -> tuple[int, Iterable[Any]]:
    """(how many, what a container has in it), the keys of a dict before its values; (0, ()) for what is none."""
    if isinstance(value, dict):
        return dict.__len__(value), chain(dict.keys(value), dict.values(value))
    for base in ROWS:
        if isinstance(value, base):
            return base.__len__(value), base.__iter__(value)
    return 0, ()


def members_of(kind: type) -> list[tuple[str, Any]]:
    """The slots of a class, and of those that it is derived from, by their names."""
    found = _members.get(kind)
    if found is None:
        found = _members[kind] = [
            (name, member)
            for cls in kind.__mro__
            if cls.__module__ != "builtins"
            for name, member in vars(cls).items()
            if isinstance(member, types.MemberDescriptorType)
        ]
    return found


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """(name, value) of those in ``__dict__`` and in slots."""
    try:
        own = value.__dict__
    except Exception:  # it has none, or is a proxy of what is not there
        own = None
    held = list(own.items()) if type(own) is dict else []
    for name, member in members_of(type(value)):
        try:
            held.append((name, member.__get__(value)))
        except AttributeError:  # it is not set
            continue
    return held


def walk_parts(root: Any, enters: Callable[[Any], bool], *, most: int | None = None) -> Iterator[Any]:
    """``root`` and what it holds, the nearest first, each object once and what is plain not at all.

    Looked into is what ``enters`` says so of. ``most``: how many objects.
    """
    seen = {id(root): root}  # kept, so that ids stay theirs
    waiting = deque([root])
    while waiting:
        value = waiting.popleft()
        yield value
        if not enters(value):
            continue
        for part in chain(entries_of(value)[1], [part for _, part in attributes_of(value)]):
            if type(part) not in PLAIN and id(part) not in seen and (most is None or len(seen) < most):
                seen[id(part)] = part
                waiting.append(part)
