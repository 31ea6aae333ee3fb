"""Find nodes that a node of the user's holds where inputs are not looked for.

Runs where a graph is planned, and where a pass begins in process.

Such a node would run as a pass of its own: with another seed, and whole in every shard. Functions may hold and iterate
what they like.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import GraphError
from torchpipe.node.containers import PLAIN
from torchpipe.node.traits import DataPipe, inputs_of, is_node, is_ours, node_name, walk

__all__ = ["refuse_hidden_inputs"]

_MOST = 100_000  # objects looked at in one node; numbers, texts and the like are none
_LIBRARIES = ("torch", "torchdata")
_OPAQUE = (str, bytes, int, float, complex, type, types.ModuleType, np.ndarray, torch.Tensor)


def refuse_hidden_inputs(nodes: Iterable[DataPipe]) -> None:
    """Raises: GraphError if a node among ``nodes`` holds another one, other than as an input or in a function."""
    for node in nodes:
        module = type(node).__module__
        if is_ours(module) or module.partition(".")[0] in _LIBRARIES:
            continue
        bound = {id(item) for item in inputs_of(node)}
        for held in _held_by(node):
            # One that reads from this node is not read by it: an object that holds the whole pipeline, say
            if id(held) not in bound and not any(item is node for item in walk(held)):
                raise GraphError(
                    f"{node_name(node)} holds {node_name(held)} where no input is looked for: a pass over it would "
                    "have another seed and yield every item in every shard. Inputs are the nodes in a node's "
                    "attributes, also in lists, tuples, dicts and dataclasses: hold it there. For passes of its own, "
                    "whole in every shard, let a function hold it and use torchpipe.iterate(node)"
                )


def _held_by(root: DataPipe) -> Iterable[DataPipe]:
    """The iterable nodes that ``root`` reaches by attributes and containers of any kind, but not through functions."""
    seen: set[int] = {id(root)}
    rest: list[Any] = [vars(root)]
    kept: list[Any] = []  # so that an id stays what it is
    while rest and len(seen) < _MOST:
        value = rest.pop()
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, TorchIterDataPipe):
            yield value
        elif isinstance(value, _OPAQUE) or is_node(value):
            continue
        elif isinstance(value, dict):
            rest.extend(item for pair in value.items() for item in pair if type(item) not in PLAIN)
        elif isinstance(value, list | tuple | set | frozenset | deque):
            rest.extend(item for item in value if type(item) not in PLAIN)
        elif not callable(value):
            rest.append(getattr(value, "__dict__", None))
            rest.extend(getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))
