"""The attributes of a pass that its class names in ``saved``: what they begin as, their values in a state and back.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchpipe.errors import StateError
from torchpipe.node.stored import is_stateful
from torchpipe.node.traits import node_name
from torchpipe.state.copying import copy_item

if TYPE_CHECKING:
    from torchpipe.node.iterator import NodeIterator

__all__ = ["kinds_of_saved", "load_saved", "set_defaults", "values_of_saved"]

_FAMILIES = (list, tuple, dict, set, frozenset, deque, np.ndarray, torch.Tensor)


def set_defaults(iterator: NodeIterator[Any]) -> None:
    """Give ``iterator`` copies of what its class gives these attributes: no pass changes what others have."""
    kind = type(iterator)
    for name in kind.saved:
        if hasattr(kind, name) and not hasattr(default := getattr(kind, name), "__get__"):
            setattr(iterator, name, copy.deepcopy(default) if is_stateful(default) else copy_item(default))


def kinds_of_saved(iterator: NodeIterator[Any]) -> dict[str, type]:
    """The kind that each value keeps during a pass. Raises: AttributeError for one that is not there."""
    for name in iterator.saved:
        if not hasattr(iterator, name):
            raise AttributeError(
                f"{type(iterator).__name__}.saved names {name!r}, which the iterator does not have: give it a value in "
                "the class, or in __init__()"
            )
    return {name: _kind(getattr(iterator, name)) for name in iterator.saved}


def values_of_saved(
    iterator: NodeIterator[Any], kinds: Mapping[str, type], image: Callable[[Any], Any]
) -> dict[str, Any]:
    """The values, as a state has them. Raises: StateError if one is of another kind than at the start of the pass."""
    state = {}
    for name in iterator.saved:
        value = getattr(iterator, name)
        if is_stateful(value):
            state[name] = image(value.state_dict())
            continue
        began_as = kinds.get(name, type(None))
        if value is not None and began_as is not type(None) and _kind(value) != began_as:
            raise StateError(
                f"{node_name(iterator.node)} saves {name}, which begins as a {began_as.__name__} and now is "
                f"{value!r:.40}, a {type(value).__name__}, so that the state would not load: keep to one kind, or "
                "let it begin as None"
            )
        state[name] = image(value)
    return state


def load_saved(iterator: NodeIterator[Any], state: Mapping[str, Any]) -> None:
    """Put the values back. Raises: StateError for one of another kind than it replaces."""
    for name in iterator.saved:
        present, value = getattr(iterator, name), state[name]
        if is_stateful(present):
            present.load_state_dict(copy_item(value))
        elif present is None or value is None or _kind(value) == _kind(present):
            setattr(iterator, name, copy_item(value))
        else:
            raise StateError(f"the state has {name}={value!r:.40}, which must be of type {type(present).__name__}")


def _kind(value: object) -> type:
    """A number may become any other, a list any other list."""
    if isinstance(value, str | bytes):
        return str if isinstance(value, str) else bytes
    if isinstance(value, Number | np.generic) or (isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0):
        return Number
    return next((kind for kind in _FAMILIES if isinstance(value, kind)), type(value))
