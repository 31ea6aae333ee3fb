"""The parts of containers and other objects, and copies of these with other parts. One level; ``tree`` goes down.

Runs in the feed thread.

Looked into: lists, tuples, named tuples, deques, sets, mappings, arrays of objects, objects with ``get_tensors`` and
``from_tensors`` as torch_xla's ``DataWrapper``, and the attributes of all other objects, and of subclasses of
containers. Numbers, strings, other arrays, classes, functions and modules are left as they are.
"""

from __future__ import annotations

import copy
import enum
import types
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Set, ValuesView
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = ["PLAIN", "Part", "changed_copy", "children", "parts_of"]

Part: TypeAlias = tuple[Any, str, Any]  # its key, how a path names it, the part

PLAIN = (int, float, complex, bool, str, bytes, type(None))

_BARE = (list, tuple, dict, set, frozenset, deque)
_OPAQUE = (
    *(int, float, complex, str, bytes, bytearray, np.generic, enum.Enum, torch.Tensor),
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)


class _Attribute(str):
    """The key of an attribute of a container, which is none of its items."""

    __slots__ = ()


def children(value: Any) -> Iterator[Part]:
    """The items of a container, or the attributes of another object."""
    if type(value) in PLAIN:
        return
    if isinstance(value, np.ndarray):
        for index, item in enumerate(value.flat if value.dtype == object else ()):
            yield index, f".flat[{index}]", item
    elif isinstance(value, _OPAQUE):
        return
    elif _is_wrapper(value):
        for index, item in enumerate(value.get_tensors()):
            yield index, f".get_tensors()[{index}]", item
    elif isinstance(value, list | tuple | deque | ValuesView):
        names = getattr(value, "_fields", None)
        # RNNs take the sizes of a packed sequence on the CPU alone
        stays = names.index("batch_sizes") if names and isinstance(value, PackedSequence) else -1
        for index, item in enumerate(value):
            if index != stays:
                yield index, f".{names[index]}" if names else f"[{index}]", item
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key, f"[{key!r}]", item
    elif isinstance(value, Set):
        for index, item in enumerate(value):
            yield index, f"{{{index}}}", item
    else:
        for name, item in _attributes(value):
            yield name, f".{name}", item


def parts_of(value: Any) -> Iterator[Part]:
    """The children, and the attributes that a subclass of a container has besides."""
    yield from children(value)
    if type(value) not in _BARE and _is_container(value):
        for name, item in _attributes(value):
            yield _Attribute(name), f".{name}", item


def _is_wrapper(value: Any) -> bool:
    kind = type(value)
    return callable(getattr(kind, "get_tensors", None)) and callable(getattr(kind, "from_tensors", None))


def _is_container(value: Any) -> bool:
    return isinstance(value, list | tuple | deque | Mapping | Set | ValuesView | np.ndarray) and not _is_wrapper(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of ``value`` in its ``__dict__`` and in slots."""
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        yield from list(own.items())
    kind: Any = type(value)
    for name in () if isinstance(value, tuple) else _slots(kind):  # of tuples, these are the items
        if hasattr(value, name):
            yield name, getattr(value, name)


@lru_cache(maxsize=1024)
def _slots(kind: Any) -> tuple[str, ...]:
    return tuple(
        name
        for cls in kind.__mro__
        for name, slot in vars(cls).items()
        if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__")
    )


def changed_copy(value: Any, new: list[tuple[Any, Any]], where: str) -> Any:
    """A copy of ``value`` that has ``new`` for its parts, by their keys. No constructor runs, where that is possible.

    Raises: TypeError, naming ``where``, if the copy does not come to hold them.
    """
    if _is_wrapper(value):
        return value.from_tensors([item for _, item in new])
    items = [(key, item) for key, item in new if type(key) is not _Attribute]
    try:
        made = _with_items(value, items) if _is_container(value) else _bare_copy(value)
        for name, item in new if not _is_container(value) else new[len(items) :]:
            _set_attribute(made, name, item)
        if type(value) in _BARE:
            return made
        held = {id(item) for _, _, item in parts_of(made)}
        if type(made) is type(value) and all(id(item) in held for _, item in new):
            return made
        trouble = "a copy of it keeps the old ones"
    except Exception as error:
        trouble = f"copying it failed with {type(error).__name__}: {error}"
    raise TypeError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, in which tensors cannot be replaced: "
        f"{trouble}. Take them out of it, for instance into a dict, in a map() before to_device()"
    )


def _with_items(value: Any, new: list[tuple[Any, Any]]) -> Any:
    kind = type(value)
    if isinstance(value, tuple):
        items = list(value)
        for index, item in new:
            items[index] = item
        return _with_attributes(_new_tuple(kind, items), value)
    items = [item for _, item in new]
    if isinstance(value, np.ndarray):
        made: Any = value.copy()
        for index, item in new:
            made.reshape(-1)[index] = item
        return made
    if kind is dict:
        return dict(new)
    if kind is deque:
        return deque(items, value.maxlen)
    if kind in _BARE:
        return kind(items)
    if isinstance(value, types.MappingProxyType):
        return types.MappingProxyType(dict(new))
    if isinstance(value, list):
        made = list.__new__(kind)
        list.extend(made, items)
        return _with_attributes(made, value)
    if isinstance(value, set | frozenset):
        return _with_attributes(_new_set(kind, items), value)
    if isinstance(value, MutableMapping):
        made = copy.copy(value)
        for key, item in new:
            made[key] = item
        return made
    if isinstance(value, deque):
        made = copy.copy(value)
        deque.clear(made)
        deque.extend(made, items)
        return made
    if isinstance(value, Mapping) and not any(True for _ in _attributes(value)):
        return kind(dict(new))
    return _bare_copy(value)  # its items are in its attributes, or it is refused


def _new_tuple(kind: Any, items: list[Any]) -> Any:
    try:
        return tuple.__new__(kind, items)
    except TypeError:
        return kind(items)  # what torch.max() returns, for instance


def _new_set(kind: Any, items: list[Any]) -> Any:
    if issubclass(kind, frozenset):
        return frozenset.__new__(kind, items)
    made = set.__new__(kind)
    set.update(made, items)
    return made


def _bare_copy(value: Any) -> Any:
    try:
        made = object.__new__(type(value))
    except TypeError:  # it has more than attributes
        return copy.copy(value)
    return _with_attributes(made, value)


def _with_attributes(made: Any, value: Any) -> Any:
    for name, item in _attributes(value):
        _set_attribute(made, name, item)
    return made


def _set_attribute(made: Any, name: str, item: Any) -> None:
    """Not by ``setattr``: that of frozen classes refuses, and others do more than to set it."""
    if any(name in vars(cls) and isinstance(vars(cls)[name], types.MemberDescriptorType) for cls in type(made).__mro__):
        object.__setattr__(made, name, item)
    else:
        made.__dict__[str(name)] = item
