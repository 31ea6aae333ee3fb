"""Find nodes that a node of the user's holds where inputs are not looked for.

Runs where a graph is planned, and where a pass begins in process.

Such a node would run as a pass of its own: with another seed, and whole in every shard. Functions may hold and iterate
what they like.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import TorchIterDataPipe
from torchpipe.errors import GraphError
from torchpipe.node.traits import DataPipe, inputs_of, is_node, is_ours, node_name, walk
from torchpipe.state.parts import CONTAINERS, walk_parts

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
    return (value for value in walk_parts(vars(root), _is_entered, most=_MOST) if isinstance(value, TorchIterDataPipe))


def _is_entered(value: Any) -> bool:
    return isinstance(value, CONTAINERS) or not (isinstance(value, _OPAQUE) or callable(value) or is_node(value))
