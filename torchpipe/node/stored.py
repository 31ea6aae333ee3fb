"""Values in states: what a node's pass, a sampler or a dataset of the user's saves, read back and checked.

Runs in every process that executes a part of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from torchpipe.errors import MISFITS, StateError, TorchpipeError, add_note
from torchpipe.state.copying import copy_items

__all__ = ["has_become_shorter", "is_stateful", "refusing_misfits", "stored_count", "stored_items"]

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
