"""Values in states: what a pass, a sampler or a dataset of the user's saves, read back and checked; and the attributes
of a pass that its class names in ``saved``.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchpipe.errors import MISFITS, StateError, TorchpipeError, add_note
from torchpipe.node.traits import node_name
from torchpipe.state.copying import copy_item, copy_items

if TYPE_CHECKING:
    from torchpipe.node.iterator import NodeIterator

__all__ = [
    "has_become_shorter",
    "is_stateful",
    "kinds_of_saved",
    "load_saved",
    "refusing_misfits",
    "set_defaults",
    "stored_count",
    "stored_items",
    "values_of_saved",
]

_MOST = 1 << 62


def is_stateful(value: object) -> bool:
    """True if ``value`` has a state of its own: ``state_dict`` and ``load_state_dict``.

    A module of torch's has both, for its weights, which no pass changes: it counts only if its class says what else
    there is to save (``get_extra_state``, or a ``state_dict`` of its own).
    """
    if isinstance(value, torch.nn.Module) and not _says_its_state(type(value)):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _says_its_state(kind: type) -> bool:
    return any(getattr(kind, name) is not getattr(torch.nn.Module, name) for name in ("state_dict", "get_extra_state"))


def has_become_shorter(done: int, count: int) -> StateError:
    """The error for a stream that ends while the items before a position are made again."""
    return StateError(
        f"the stream ended after {done} of {count} items that the state says were delivered: has the data become "
        "shorter, or does a function not depend on its input alone?"
    )


def stored_count(state: Mapping[str, Any], name: str, at_most: int | None = None) -> int:
    """``state[name]``, a number of items. Raises: StateError unless it is an int from 0 to ``at_most`` (2**62)."""
    value = state.get(name)
    if type(value) is not int or not 0 <= value <= (_MOST if at_most is None else at_most):
        limit = "" if at_most is None else f", and at most {at_most}"
        raise StateError(f"the state has {name}={value!r:.40}, which must be a whole number from 0 on{limit}")
    return value


def stored_items(state: Mapping[str, Any], name: str, at_most: int | None = None) -> list[Any]:
    """``state[name]``, items that are held, as copies: the state stays as it is.

    Raises: StateError if it is no list or too long.
    """
    value = state.get(name)
    if type(value) is not list or (at_most is not None and len(value) > at_most):
        held = f"{len(value)} items" if type(value) is list else f"a {type(value).__name__}"
        most = "" if at_most is None else f" of at most {at_most}"
        raise StateError(f"the state has {held} as {name}, which must be a list{most}")
    return copy_items(value)


@contextmanager
def refusing_misfits(what: str) -> Iterator[None]:
    """Raise a StateError that names ``what`` in the place of errors over a state that is another's; a StateError of the
    library's own gets a note that names the owner of the state, and what to do.
    """
    try:
        yield
    except StateError as error:
        if type(error) is StateError and not hasattr(error, "__notes__"):
            add_note(
                error,
                f"torchpipe: raised while {what} loaded its state. Unless the data have changed, it is damaged or was "
                "saved with another graph: use an older checkpoint, or build the graph as it was",
            )
        raise
    except MISFITS as error:
        if isinstance(error, TorchpipeError):
            raise
        raise StateError(
            f"the state does not fit {what} ({type(error).__name__}: {error}): is it damaged, or another node's?"
        ) from error


_FAMILIES = (list, tuple, dict, set, frozenset, deque, np.ndarray, torch.Tensor)


def set_defaults(iterator: NodeIterator[Any]) -> None:
    """Give ``iterator`` copies of what its class gives these attributes: no pass changes what others have."""
    kind = type(iterator)
    for name in iterator.saved:
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
