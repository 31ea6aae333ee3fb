"""Find and replace the tensors in a batch, whatever it is nested in; everything else keeps its type and identity.

Runs in the feed thread.

What has changed parts is copied, and its constructor does not run; what cannot be copied is refused by its path. A part
that occurs several times is copied once.

The parts of containers and other objects, one level down, and copies of these with other parts.

Looked into: lists, tuples, named tuples, deques, sets, mappings, arrays of objects, objects with ``get_tensors`` and
``from_tensors`` as torch_xla's ``DataWrapper``, and the attributes of all other objects, and of subclasses of
containers. Numbers, strings, other arrays, classes, functions and modules are left as they are.

The properties of a tensor besides its values, which alone are moved: its class, attributes and ``requires_grad``.
"""

from __future__ import annotations

import copy
import enum
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Set, ValuesView
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from torchpipe.compat.torch_private import WITHOUT_OVERRIDES

__all__ = [
    "Kind",
    "Part",
    "children",
    "is_wrapper",
    "kind_of",
    "path_of",
    "replace_arrays",
    "replace_tensors",
    "restored",
    "tensors_in",
    "values_of",
]

Part: TypeAlias = tuple[Any, str, Any]  # its key, how a path names it, the part

_PLAIN = (int, float, complex, bool, str, bytes, type(None))

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
    if type(value) in _PLAIN:
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


def _parts_of(value: Any) -> Iterator[Part]:
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


def _changed_copy(value: Any, new: list[tuple[Any, Any]], where: str) -> Any:
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
        held = {id(item) for _, _, item in _parts_of(made)}
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


class _Survey:
    """A map of a batch, each container looked into once. Holds the batch, and no cycle of its own."""

    def __init__(self, batch: Any, kind: type) -> None:
        self.leaves: dict[int, tuple[Any, str]] = {}  # by id: the leaf, and where it first occurs
        self.parts: dict[int, tuple[Any, list[Part]]] = {}  # by id: the container, which keeps its id, and its parts
        self.keys: list[str] = []  # where mappings have leaves in their keys
        self._kind = kind
        try:
            self._look(batch, "batch")
        except RecursionError:
            raise ValueError(
                "a batch is nested too deeply to be looked through for its tensors: put them into a flatter structure"
            ) from None

    def _look(self, value: Any, where: str) -> None:
        if isinstance(value, self._kind):
            self.leaves.setdefault(id(value), (value, where))
        elif type(value) not in _PLAIN and id(value) not in self.parts:
            parts = list(_parts_of(value))
            self.parts[id(value)] = value, parts
            for _, name, part in parts:
                if type(part) not in _PLAIN:
                    self._look(part, where + name)
            if isinstance(value, Mapping):
                for key in value:
                    if type(key) not in _PLAIN and _Survey(key, self._kind).leaves:
                        self.keys.append(where)


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """The tensors in ``batch``, subclasses included, in its order; one that occurs several times is listed once.

    Raises: ValueError if it is nested too deeply.
    """
    return [tensor for tensor, _ in _Survey(batch, torch.Tensor).leaves.values()]


def path_of(batch: Any, tensor: torch.Tensor) -> str:
    """The path at which ``tensor`` first occurs in ``batch``, as Python would write it: ``batch['image'][0]``."""
    return _Survey(batch, torch.Tensor).leaves.get(id(tensor), (None, ""))[1]


def replace_tensors(batch: Any, move: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """``batch`` with its tensors replaced by what one call of ``move`` makes of the list of them.

    The batch itself is not changed; parts of it that hold no tensor are used as they are. A tensor that occurs several
    times is moved once.

    Raises: ValueError if a part that holds tensors contains itself; TypeError, naming it, if one cannot be copied with
    other tensors in it, or has tensors for keys.
    """
    survey = _Survey(batch, torch.Tensor)
    if survey.keys:
        raise TypeError(
            f"{survey.keys[0]} has a tensor in a key, where none can be moved: make keys of plain values, such as "
            "tensor.item(), in a map() before"
        )
    tensors = [tensor for tensor, _ in survey.leaves.values()]
    if not tensors:
        return batch
    return _rebuild(batch, dict(zip(survey.leaves, move(tensors), strict=True)), survey)


def replace_arrays(batch: Any, convert: Callable[[np.ndarray[Any, Any]], torch.Tensor | None]) -> Any:
    """``batch`` with its numpy arrays replaced by what ``convert`` makes of each; None leaves it. One that occurs
    several times is converted once. Raises: as :func:`replace_tensors`."""
    survey = _Survey(batch, np.ndarray)
    made = {key: convert(array) for key, (array, _) in survey.leaves.items()}
    return _rebuild(batch, {key: tensor for key, tensor in made.items() if tensor is not None}, survey)


def _rebuild(batch: Any, new: dict[int, Any], survey: _Survey) -> Any:
    return _rebuilt(batch, "batch", new, survey.parts, {}) if new else batch


# Not nested in the function above: one that calls itself is a cycle, and would keep the tensors until it is collected.
def _rebuilt(
    value: Any, where: str, made: dict[int, Any], parts: dict[int, tuple[Any, list[Part]]], inside: dict[int, bool]
) -> Any:
    """``value`` with what ``made`` has in the place of its parts. ``inside`` says of the containers around it whether
    they have been found in themselves."""
    identity = id(value)
    if identity in made:
        return made[identity]
    if identity in inside:
        inside[identity] = True
        return value
    if type(value) in _PLAIN or identity not in parts:
        return value
    inside[identity] = False
    new = [(key, _rebuilt(part, where + name, made, parts, inside)) for key, name, part in parts[identity][1]]
    in_itself = inside.pop(identity)
    if all(fresh is part for (_, fresh), (_, _, part) in zip(new, parts[identity][1])):
        made[identity] = value
        return value
    if in_itself:
        raise ValueError(
            f"{where}, of type {type(value).__name__}, contains itself and tensors: no copy can be made of it with "
            "other tensors. Take the reference to itself out in a map() before to_device()"
        )
    made[identity] = _changed_copy(value, new, where)
    return made[identity]


Kind: TypeAlias = tuple[type[torch.Tensor], bool, dict[str, Any]]  # class, requires_grad, attributes

_PLAIN_DISPATCH: Any = torch.Tensor.__torch_dispatch__  # of classes whose values are in themselves


def is_wrapper(tensor: torch.Tensor) -> bool:
    """True for a class whose values are not in the tensor itself, but in others that it holds."""
    return hasattr(tensor, "__tensor_flatten__") or type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values as a tensor without a class of its own."""
    if type(tensor) is not torch.Tensor:
        with WITHOUT_OVERRIDES():
            tensor = tensor.detach().as_subclass(torch.Tensor)
    return tensor.resolve_conj().resolve_neg()


def kind_of(tensor: torch.Tensor) -> Kind | None:
    """The properties that :func:`values_of` has taken from the tensor; None if nothing."""
    return None if type(tensor) is torch.Tensor else (type(tensor), tensor.requires_grad, dict(vars(tensor)))


def restored(tensor: torch.Tensor, kind: Kind | None) -> torch.Tensor:
    """Plain values as a tensor of ``kind``, over the same memory."""
    if kind is None:
        return tensor
    made_by, requires_grad, attributes = kind
    if issubclass(made_by, torch.nn.Parameter):
        made: torch.Tensor = torch.nn.Parameter(tensor, requires_grad)
    else:
        made = tensor.as_subclass(made_by).requires_grad_(requires_grad)
    made.__dict__.update(attributes)
    return made
