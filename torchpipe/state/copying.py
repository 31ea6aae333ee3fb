"""Copies of items, for nodes that keep what others hold too, and for states; and the parts of a value: the entries of a
container, and the attributes of an object. Runs in every process.

No method of a user's class is called, but for properties named ``__dict__``: of classes that are derived from
containers, the containers' own methods are.
"""

from __future__ import annotations

import copy
import io
import mmap
import pathlib
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import StateError
from torchpipe.state.pickling import is_made_otherwise, reduce_error
from torchpipe.state.tensors import copy_tensor

__all__ = [
    "CONTAINERS",
    "PLAIN",
    "ROWS",
    "attributes_of",
    "beside_the_loop",
    "content_of_cell",
    "copy_item",
    "copy_items",
    "entries_of",
    "holds_mutable",
    "separated",
    "used_up_in",
    "walk_parts",
]

T = TypeVar("T")

_IMMUTABLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, type(...), pathlib.PosixPath, pathlib.PurePosixPath}
)


def copy_item(item: Any) -> Any:
    """``item``, or a copy of it if it could be changed in place; what cannot be copied (an open file) itself.

    Arrays and tensors are copied alone, also those in deques and objects, where ``copy.deepcopy`` would copy all the
    memory that a view looks into. What items are read from or made by (map-style datasets, nodes, modules) stays the
    same object, and so do arrays that nobody can write into, such as those of a file that is mapped for reading. As in
    a state, a list that is in an item twice is two lists in the copy.
    """
    try:
        return _copied(item)
    except RecursionError:  # a list that holds itself
        return _deep(item)


def beside_the_loop(users: T) -> T:
    """Copies of the user's objects, for who calls them beside the loop: the loop's own would be led on (counters,
    generators of their own, iterators). Raises: StateError for what cannot be copied.
    """
    try:
        return copy.deepcopy(users)
    except Exception as error:
        raise StateError(
            "to look beside the loop takes a copy of the loader's data and functions, and they cannot be copied "
            f"({type(error).__name__}: {error}). Make a second loader, and look into that"
        ) from error


def copy_items(items: Iterable[Any]) -> list[Any]:
    """A list of items as :func:`copy_item` makes them."""
    copied = list(items)
    return [copy_item(item) for item in copied] if holds_mutable(copied) else copied


def separated(items: list[Any]) -> list[Any]:
    """``items``, none of which changes when another one is changed in place: copies if two hold the same object, or
    views of the same array.
    """
    if not holds_mutable(items):
        return items
    seen: set[int] = set()
    for item in items:
        held: set[int] = set()
        _note_mutable(item, held)
        if not seen.isdisjoint(held):
            return copy_items(items)
        seen |= held
    return items


def _note_mutable(item: Any, held: set[int]) -> None:
    """Add what says which memory ``item`` holds: ids of objects, addresses of tensors' storages."""
    kind = type(item)
    if kind in _IMMUTABLE or id(item) in held or (kind not in (dict, list, tuple) and _stays(item)):
        return
    if kind is not tuple:
        held.add(id(item))
    if isinstance(item, torch.Tensor):
        held.add(-1 - item.untyped_storage().data_ptr() if item.layout is torch.strided else id(item))
    elif isinstance(item, np.ndarray):
        base = item
        while isinstance(base.base, np.ndarray):
            base = base.base
        held.add(id(base))
    elif isinstance(item, dict):
        for value in item.values():
            _note_mutable(value, held)
    elif isinstance(item, tuple | list | deque):
        for part in item:
            _note_mutable(part, held)


def _stays(item: Any) -> bool:
    """True for what items are read from or made by, and what nobody can change in place."""
    if isinstance(item, np.ndarray):
        return not item.flags.writeable and _is_fixed(item)
    if isinstance(item, Dataset):  # others that are iterable may keep where they stand in themselves
        return not isinstance(item, IterableDataset) or isinstance(item, TorchIterDataPipe)
    return isinstance(item, torch.nn.Module) or type(item).__module__ == "pyarrow.lib"


def _is_fixed(array: Any) -> bool:
    """True if it, which is not writeable, looks into memory that cannot be made so."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return isinstance(array, bytes | mmap.mmap) or type(array).__module__ == "pyarrow.lib"


def used_up_in(item: Any, copied: Any) -> object | None:
    """The object in ``item`` that an attempt to use it may use up, and that ``copied``, its :func:`copy_item`, shares:
    an open file or an iterator; None if there is none.
    """
    if type(item) in (tuple, list):
        return next((used for used in map(used_up_in, item, copied) if used is not None), None)
    if type(item) is dict:
        return used_up_in(tuple(item.values()), tuple(copied.values()))
    used = callable(getattr(item, "read", None)) or hasattr(type(item), "__next__")
    return item if copied is item and used else None


def holds_mutable(items: Iterable[Any]) -> bool:
    """Might one of ``items`` be changed in place? By type: 15 ns an item."""
    return not _IMMUTABLE.issuperset(set(map(type, items)))


def _copied(item: Any) -> Any:
    kind = type(item)
    if kind in _IMMUTABLE:
        return item
    if kind is torch.Tensor and not item.requires_grad:
        return copy_tensor(item)
    if kind is np.ndarray and not item.dtype.hasobject and item.flags.writeable:
        return item.copy()
    if kind is tuple:
        return tuple([_copied(part) for part in item])
    if kind is dict:
        return {key: _copied(value) for key, value in item.items()}
    if kind is list:
        return [_copied(part) for part in item]
    if kind is deque:
        return deque(map(_copied, item), item.maxlen)
    if _stays(item):
        return item
    return item.copy() if kind is np.ndarray and not item.dtype.hasobject else _deep(item)


def _deep(item: Any) -> Any:
    is_file = all(callable(getattr(item, name, None)) for name in ("read", "close"))  # one alone is data
    if is_file and not isinstance(item, io.BytesIO | io.StringIO):
        return item  # an open file, perhaps within other objects, of which a copy would be half made
    try:
        return _error(item) if is_made_otherwise(type(item)) else copy.deepcopy(item, _others_in(item))
    except Exception:  # objects refuse in many ways: TypeError, NotImplementedError, errors of their own
        return item


def _others_in(item: Any) -> dict[int, Any]:
    """Copies of the plain tensors in an object, and what stays, by their ids, as ``copy.deepcopy`` is to find them."""
    found: dict[int, Any] = {}
    waiting, seen = [item], set[int]()
    while waiting:
        part = waiting.pop()
        if type(part) in _IMMUTABLE or id(part) in seen:
            continue
        seen.add(id(part))
        if type(part) is torch.Tensor:
            if not part.requires_grad:
                found[id(part)] = copy_tensor(part)
        elif _stays(part):
            found[id(part)] = part
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list | tuple | set | frozenset | deque):
            waiting += part
        elif not isinstance(part, type):
            waiting += getattr(part, "__dict__", {}).values()
    return found


def _error(error: BaseException) -> BaseException:
    """A copy, without the constructor: ``copy.deepcopy`` calls it, and may so make another text."""
    make, (kind, *args), *attributes = reduce_error(error)
    made: BaseException = make(kind, *copy.deepcopy(args))
    for values in attributes:
        vars(made).update(copy.deepcopy(values))
    return made


ROWS: tuple[Any, ...] = (list, tuple, deque, set, frozenset)
"""Containers without keys."""
CONTAINERS: tuple[type, ...] = (dict, *ROWS)
PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types of what holds nothing, and is held most."""
_members: WeakKeyDictionary[type, list[tuple[str, Any]]] = WeakKeyDictionary()


def content_of_cell(cell: types.CellType) -> Any:
    """The value of a variable that a function encloses; None if it has none as yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def entries_of(value: Any) -> tuple[int, Iterable[Any]]:
    """(how many, what a container has in it), the keys of a dict before its values; (0, ()) for what is none."""
    if isinstance(value, dict):
        return dict.__len__(value), chain(dict.keys(value), dict.values(value))
    for base in ROWS:
        if isinstance(value, base):
            return base.__len__(value), base.__iter__(value)
    return 0, ()


def _members_of(kind: type) -> list[tuple[str, Any]]:
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
    for name, member in _members_of(type(value)):
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
