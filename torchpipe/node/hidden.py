"""Refuse to iterate, inside a node's own pass, a node that it holds but that is not bound to this pass as an input.

Runs in every process that executes a part of a graph.

Such a node would run as a pass of its own: with another seed, and whole in every shard. Which node is at work is read
from the stack when ``iter(node)`` is called, so that items cost nothing. Nodes that a function iterates, or that a node
makes while it runs, are passes of their own by intention: only what the node at work has in its attributes, in whatever
objects (other than functions), or what its inputs read from, counts.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import GraphError
from torchpipe.node.traits import DataPipe, inputs_of, is_node, node_name

__all__ = ["note_pass", "refuse_hidden_input"]

_MOST = 10_000  # objects looked at in search of a held node
_LIBRARY = ("torchpipe.iter.", "torchpipe.map.")
_OPAQUE = (str, bytes, int, float, complex, type, types.ModuleType, np.ndarray, torch.Tensor)

_passes: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # those over users' nodes, by id

_held: weakref.WeakKeyDictionary[Any, tuple[DataPipe, ...]] = weakref.WeakKeyDictionary()


def note_pass(iterator: Any) -> None:
    """Let :func:`refuse_hidden_input` know a pass over a node of the user's: its ``node`` and ``_stream``."""
    _passes[id(iterator)] = iterator


def refuse_hidden_input(nodes: Iterable[DataPipe]) -> None:
    """Raises: GraphError if a pass over ``nodes``, begun without a context, stands for an input of a node at work."""
    if not _passes:
        return
    at_work = _pass_at_work()
    if at_work is None:
        return
    # Looked for once in a pass: a node may make a small pipeline for every item.
    if at_work not in _held:
        _held[at_work] = tuple(_held_by(at_work.node))
    wanted = {id(node) for node in nodes if isinstance(node, TorchIterDataPipe)}  # map-style ones are read by anybody
    for held in _held[at_work]:
        if id(held) in wanted:
            raise GraphError(
                f"{node_name(at_work.node)} iterates {node_name(held)}, which is not bound to its pass: it would have "
                "another seed and yield every item in every shard. Inputs are the nodes in a node's attributes, also "
                "in lists, tuples, dicts and dataclasses: hold it there and iterate that attribute (in a NodeIterator, "
                "self.inputs[...].items()). For a pass of its own, whole in every shard, use torchpipe.iterate(node)"
            )


def _pass_at_work() -> Any:
    """The innermost pass on this thread's stack, if it is over a node of the user's; else None."""
    running: dict[types.FrameType, Any] = {}
    for reference in _passes.valuerefs():
        iterator = reference()
        if iterator is not None:
            frame = getattr(iterator.__dict__.get("_stream"), "gi_frame", None)
            running |= {} if frame is None else {frame: iterator}
    place: types.FrameType | None = inspect.currentframe()
    while place is not None and place not in running:
        if str(place.f_globals.get("__name__")).startswith(_LIBRARY):
            return None  # a node of the library is at work: it calls a function, which may iterate what it likes
        place = place.f_back
    return None if place is None else running[place]


def _held_by(root: DataPipe) -> Iterable[DataPipe]:
    """The nodes that ``root`` reaches by attributes and containers of any kind, but not through functions."""
    seen: set[int] = {id(root)}
    rest: list[Any] = [vars(root)]
    kept: list[Any] = []  # so that an id stays what it is
    while rest and len(seen) < _MOST:
        value = rest.pop()
        if isinstance(value, _OPAQUE) or value is None or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if is_node(value):
            yield value
            rest.extend(inputs_of(value))
        elif isinstance(value, dict):
            rest.extend([*value.keys(), *value.values()])
        elif isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
            rest.extend(value)
        elif not callable(value):
            rest.append(getattr(value, "__dict__", None))
            rest.extend(getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))
