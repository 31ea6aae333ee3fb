"""The random generators that objects of users hold, and what else in these is a position of its own.

Runs in every process that reads by index. Objects are followed by what they hold now, not by what they would be pickled
as: their attributes and slots, containers, what functions are bound to, enclose and have as defaults. Nothing of them
is run, but for properties named ``__dict__``.

It looks at what is near first, at 5,000 objects at most, and of a container with more than a thousand entries at the
first hundred: that is data. Not followed are modules, classes (but for generators that are their attributes), the
variables of a function's module, tensors, what Python cannot look into, and iterable datasets and nodes, of which each
pass has a copy.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import pathlib
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

from torchpipe.randomness.generators import GENERATORS, is_of_process
from torchpipe.state.copying import ROWS, attributes_of, entries_of
from torchpipe.values.object_contents import is_of_machine

__all__ = ["GeneratorSearch"]

_MOST, _OF_MORE = 1000, 100  # entries of a container that are looked at, and of one that has more
_MOST_OBJECTS = 5000

_Parts: TypeAlias = Iterable[tuple[str | None, Any]]
"""(what leads there, the part); None: nothing does that is the same in every process."""
_NOWHERE = "\0"

_ATOMS: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, range, slice, type(None), type(...), np.dtype, torch.dtype}
)
_LEAVES = (
    *(type, types.ModuleType, torch.Tensor, IterableDataset, torch.device, np.generic, np.ufunc),
    *(pathlib.PurePath, enum.Enum, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID),
)
_BOUND = (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)


@dataclass(slots=True)
class GeneratorSearch:
    """The random generators in ``roots`` now.

    ``generators``: by the paths that lead to them, the same in every process. ``lost``: positions out of
    reach, as of iterators: their descriptions, by path.
    """

    roots: tuple[Any, ...]
    ignores: Callable[[str], bool]  # of modules' names: objects of their classes tell nothing but what they hold
    generators: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _Walk(self).go()

    def name(self, path: str) -> str:
        """For people: the root by its type."""
        number, of_root, rest = path.partition("/")
        if not of_root:
            return path
        root = self.roots[int(number)]
        return f"{getattr(root, '__qualname__', type(root).__name__)}{rest.replace(_NOWHERE, '')[:200]}"


class _Walk:
    def __init__(self, found: GeneratorSearch) -> None:
        self._found = found
        self._kinds: dict[type, Callable[[Any, str], _Parts] | None] = dict.fromkeys(_ATOMS)
        self._seen: dict[int, Any] = {}  # kept, so that ids stay theirs
        self._waiting: deque[tuple[str, Any]] = deque()
        self._cut: list[str] = []  # containers that have more entries than were looked at

    def go(self) -> None:
        found = self._found
        for number, root in enumerate(found.roots):
            self._add(f"{number}/", root)
        while self._waiting:
            path, value = self._waiting.popleft()
            follow = self._kinds[type(value)]
            assert follow is not None
            for step, part in follow(value, path):
                self._add(path + (_NOWHERE if step is None else step), part)
        for path in [path for path in found.generators if _NOWHERE in path]:
            del found.generators[path]
            found.lost[path] = "a random generator in a set, whose order differs between processes"
        for cut in self._cut:
            if any(path.startswith(f"{cut}[") for path in found.generators):
                found.lost[cut] = f"a container of more than {_MOST:,} with random generators"

    def _add(self, path: str, value: Any) -> None:
        kind = type(value)
        if kind not in self._kinds:
            self._kinds[kind] = self._way_of(kind)
            if self._kinds[kind] is not None:
                self._look_at_class(kind)
        if self._kinds[kind] is None or id(value) in self._seen or len(self._seen) == _MOST_OBJECTS:
            return
        self._seen[id(value)] = value
        if not issubclass(kind, GENERATORS):
            self._waiting.append((path, value))
        elif not is_of_process(value):
            while path in self._found.generators:  # of two classes of one name
                path += "'"
            self._found.generators[path] = value

    def _look_at_class(self, kind: type) -> None:
        """For generators that are attributes of a class."""
        for cls in kind.__mro__:
            for name, value in () if cls.__module__ == "builtins" else list(vars(cls).items()):
                if issubclass(type(value), GENERATORS):
                    self._add(f"{cls.__qualname__}.{name}", value)

    def _way_of(self, kind: type) -> Callable[[Any, str], _Parts] | None:
        ignores = self._found.ignores
        if issubclass(kind, GENERATORS):
            return self._nothing
        if issubclass(kind, _LEAVES) or is_of_machine(kind):
            return None
        if issubclass(kind, np.ndarray):
            return self._array
        if issubclass(kind, types.FunctionType):
            return self._function
        if issubclass(kind, _BOUND):
            return self._bound
        if issubclass(kind, functools.partial):
            return self._partial
        room = kind.__module__
        if callable(getattr(kind, "state_dict", None)) and not (ignores(room) or room.partition(".")[0] == "torch"):
            return self._attributes if issubclass(kind, nn.Module) else self._stateful
        if room == "itertools":
            return self._iterator
        if issubclass(kind, dict):
            return self._dict
        if issubclass(kind, list | tuple | deque):
            return self._row
        if issubclass(kind, set | frozenset):
            return self._set
        return self._attributes

    def _nothing(self, value: Any, path: str) -> _Parts:
        return ()

    def _first(self, count: int, values: Iterable[Any], path: str) -> list[Any]:
        """The first of ``values``; [] if none of them can hold anything."""
        if count > _MOST:
            self._cut.append(path)
        first = list(islice(values, _MOST if count <= _MOST else _OF_MORE))
        return [] if _ATOMS.issuperset(map(type, first)) else first

    def _row(self, value: Any, path: str) -> _Parts:
        first = self._first(*entries_of(value), path)
        parts = [(f"[{number}]", part) for number, part in enumerate(first) if type(part) not in _ATOMS]
        return parts if type(value) in ROWS else chain(parts, self._attributes(value, path))

    def _dict(self, value: Any, path: str) -> _Parts:
        count = dict.__len__(value)
        keys = list(islice(dict.keys(value), _MOST))
        parts = [(f"[key {number}]", key) for number, key in enumerate(self._first(count, keys, path))]
        for key, part in zip(keys, self._first(count, dict.values(value), path)):
            if type(part) not in _ATOMS:
                parts.append((f"[{key!r}]" if type(key) in _ATOMS else f"[value {len(parts)}]", part))
        return parts if type(value) is dict else chain(parts, self._attributes(value, path))

    def _set(self, value: Any, path: str) -> Iterator[tuple[str | None, Any]]:
        parts = self._first(*entries_of(value), path)
        for part in parts:
            yield "[0]" if len(parts) == 1 else None, part
        yield from self._attributes(value, path)

    def _array(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if value.dtype.hasobject:
            for number, part in enumerate(self._first(value.size, value.flat, path)):
                yield f"[{number}]", part

    def _bound(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield ".__self__", value.__self__
        if isinstance(value, types.MethodType):
            yield ".__func__", value.__func__

    def _partial(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        yield from self._attributes(value, path)

    def _function(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        for number, cell in enumerate(value.__closure__ or ()):
            try:
                part = cell.cell_contents
            except ValueError:  # it has no value yet
                continue
            yield f"(variable {number})", part
        for number, part in enumerate(value.__defaults__ or ()):
            yield f"(default {number})", part
        for name, part in (value.__kwdefaults__ or {}).items():
            yield f"({name})", part
        yield from self._attributes(value, path)

    def _iterator(self, value: Any, path: str) -> _Parts:
        self._found.lost[path] = f"an iterator ({type(value).__name__})"
        return ()

    def _stateful(self, value: Any, path: str) -> _Parts:
        self._found.lost[path] = f"an object with a state_dict ({type(value).__name__}), of which no state knows here"
        return self._attributes(value, path)

    def _attributes(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, part in attributes_of(value):
            if type(part) not in _ATOMS:
                yield f".{name}", part
