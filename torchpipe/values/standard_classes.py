"""Classes of Python's own that hold values and do nothing: a state may have objects of these where none is present."""

from __future__ import annotations

import collections
from typing import Any

__all__ = ["WELL_KNOWN", "WELL_KNOWN_MAKERS"]

_CALLED = (collections.deque, collections.OrderedDict, collections.defaultdict, frozenset)
_NEW = (collections.Counter, collections.UserDict, collections.UserList, collections.ChainMap)
_ITERATORS: tuple[type, ...] = (type(iter([])), type(iter(())), type(iter("")), type(iter(b"")), type(iter(range(0))))


def _name(code: Any) -> str:
    return f"{code.__module__}:{code.__qualname__}"


WELL_KNOWN: dict[str, Any] = {
    _name(code): code
    for code in (*_CALLED, *_NEW, *_ITERATORS, iter, list, dict, tuple, set, int, float, str, bytes, bool)
}
WELL_KNOWN_MAKERS: set[tuple[str, str, str]] = {
    *((_name(cls), "call", _name(cls)) for cls in _CALLED),
    *((_name(cls), "new", _name(cls)) for cls in _NEW),
    *((_name(cls), "call", _name(iter)) for cls in _ITERATORS),
}
"""(class, how, class or function): how an object is made. See ``object_contents``."""
