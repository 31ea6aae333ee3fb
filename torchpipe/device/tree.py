"""Find and replace the tensors in a batch, whatever it is nested in; everything else keeps its type and identity.

Runs in the feed thread. Imports nothing of torchpipe.

Looked into: lists, tuples, named tuples, mutable mappings and dataclasses (frozen or with slots, too), with their
subclasses. Numbers, strings, numpy arrays and all other objects are left as they are.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["children", "path_of", "replace_arrays", "replace_tensors", "tensors_in"]

_Child: TypeAlias = tuple[Any, str, Any]  # its key, how a path names it, the child

_PLAIN = (int, float, complex, bool, str, bytes, type(None))


def children(value: Any) -> Iterator[_Child]:
    """The parts of a container: (its key, how a path names it, the part). Nothing for all else."""
    if type(value) in _PLAIN:
        return
    if isinstance(value, list | tuple):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            yield index, f".{names[index]}" if names else f"[{index}]", item
    elif isinstance(value, MutableMapping):
        for key, item in value.items():
            yield key, f"[{key!r}]", item
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield field.name, f".{field.name}", getattr(value, field.name)


def tensors_in(batch: Any) -> list[torch.Tensor]:
    """The tensors in ``batch``, subclasses included, in its order; one that occurs several times is listed once."""
    found: dict[int, torch.Tensor] = {}
    _collect(batch, found)
    return list(found.values())


# Not nested in the function above: one that calls itself is a cycle, and would keep the tensors until it is collected.
def _collect(value: Any, found: dict[int, torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.setdefault(id(value), value)
        return
    for _, _, child in children(value):
        _collect(child, found)


def path_of(batch: Any, tensor: torch.Tensor, prefix: str = "batch") -> str:
    """Where ``tensor`` first occurs in ``batch``, as Python would write it: ``batch['image'][0]``."""
    if batch is tensor:
        return prefix
    for _, name, child in children(batch):
        found = path_of(child, tensor, prefix + name)
        if found:
            return found
    return ""


def replace_tensors(batch: Any, move: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Any:
    """``batch`` with its tensors replaced by what one call of ``move`` makes of the list of them.

    The batch itself is not changed; parts of it that hold no tensor are used as they are. A tensor that occurs several
    times is moved once.
    """
    tensors = tensors_in(batch)
    if not tensors:
        return batch
    moved = dict(zip(map(id, tensors), move(tensors), strict=True))
    return _rebuild(batch, lambda leaf: moved[id(leaf)] if isinstance(leaf, torch.Tensor) else None)


def replace_arrays(batch: Any, convert: Callable[[np.ndarray[Any, Any]], torch.Tensor | None]) -> Any:
    """``batch`` with its numpy arrays replaced by what ``convert`` makes of each; None leaves it. One that occurs
    several times is converted once."""
    made: dict[int, torch.Tensor | None] = {}

    def replace(leaf: Any) -> torch.Tensor | None:
        if not isinstance(leaf, np.ndarray):
            return None
        if id(leaf) not in made:
            made[id(leaf)] = convert(leaf)
        return made[id(leaf)]

    return _rebuild(batch, replace)


def _rebuild(value: Any, replace: Callable[[Any], Any]) -> Any:
    """``value`` with those parts changed for which ``replace`` does not say None."""
    new_value = replace(value)
    if new_value is not None:
        return new_value
    if isinstance(value, torch.Tensor):
        return value
    old = list(children(value))
    new = [(key, _rebuild(child, replace)) for key, _, child in old]
    if all(fresh is child for (_, fresh), (_, _, child) in zip(new, old)):
        return value
    return _remake(value, new)


def _remake(value: Any, new: list[tuple[Any, Any]]) -> Any:
    """A copy of the container ``value`` with new children. Only subclasses of list and tuple run their constructor."""
    kind = type(value)
    items = [child for _, child in new]
    if kind is list:
        return items
    if isinstance(value, tuple):
        make = getattr(kind, "_make", kind)
        return make(items)
    if isinstance(value, list):
        return kind(items)
    if kind is dict:
        return dict(new)
    if isinstance(value, MutableMapping):
        clone = copy.copy(value)
        clone.update(new)
        return clone
    return _remake_dataclass(value, new)


def _remake_dataclass(value: Any, new: list[tuple[Any, Any]]) -> Any:
    """Neither ``__init__`` nor ``__post_init__`` runs: the fields hold what they made of their arguments."""
    clone = object.__new__(type(value))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                object.__setattr__(clone, name, getattr(value, name))
    if hasattr(value, "__dict__"):
        clone.__dict__.update(value.__dict__)
    for name, child in new:
        object.__setattr__(clone, name, child)
    return clone
