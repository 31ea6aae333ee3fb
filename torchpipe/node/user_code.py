"""The user's own code in a graph: the nodes that run some, and nodes that theirs hold where inputs are not looked for.

Runs where a graph is planned, and wherever a pass begins.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from torchpipe.compat.torch_datapipes import DataChunk, TorchIterDataPipe
from torchpipe.errors import GraphError
from torchpipe.node.containers import PLAIN
from torchpipe.node.traits import DataPipe, inputs_of, is_node, is_ours, node_name, walk
from torchpipe.state.copying import CONTAINERS, walk_parts

__all__ = ["node_runs_users_code", "refuse_hidden_inputs", "runs_users_code"]

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


_PLAIN = PLAIN | {complex, range}
_MADE = (list, tuple, dict, DataChunk)  # classes that a node may hold, to make items of


def runs_users_code(graph: DataPipe) -> bool:
    """True if any code of the user's runs in ``graph``, which may draw from the global random states.

    None does where all nodes are torchpipe's and hold plain data alone, items included: their own random choices come
    from keyed streams.
    """
    return any(map(node_runs_users_code, walk(graph)))


def node_runs_users_code(node: DataPipe) -> bool:
    """The same of ``node`` without its inputs."""
    if not is_ours(type(node).__module__):
        return True
    return not all(is_node(value) or _is_plain(value) for value in vars(node).values())


def _is_plain(value: Any) -> bool:
    """True if ``value`` is data of Python's own types, in lists, tuples and dicts, and nodes."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if type(item) in (list, tuple, dict):
            if id(item) in seen:
                continue
            seen.add(id(item))
            if type(item) is dict:
                waiting += [*item, *item.values()]
            elif not set(map(type, item)) <= _PLAIN:
                waiting += item
        elif not (type(item) in _PLAIN or is_node(item) or any(item is kind for kind in _MADE) or _is_own(item)):
            return False
    return True


def _is_own(item: Any) -> bool:
    """True if ``item`` is of a class of torchpipe's that says ``holds_only_data``: nothing of the user's is in it."""
    kind = type(item)
    return is_ours(kind.__module__) and getattr(kind, "holds_only_data", False) is True
