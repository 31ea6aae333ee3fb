"""A nested dict of a graph, and changes of its nodes *in place*.

For services, ``worker_init_fn``, ``worker_reset_fn`` and adapters that were written for torchdata. New code takes
:func:`~torchpipe.graph.find`, :func:`~torchpipe.graph.replace_node` and ``rewrite``, which leave the nodes as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

from torchpipe.node.traits import DataPipe, inputs_of, is_node, node_name, with_inputs

__all__ = [
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "traverse_dps",
]

DataPipeGraph: TypeAlias = "dict[int, tuple[DataPipe, DataPipeGraph]]"
"""The id of a node -> the node, and the graph of its inputs."""


def traverse_dps(datapipe: DataPipe) -> DataPipeGraph:
    """The graph that ends in ``datapipe``, inputs in the order of the attributes; a cycle ends where it closes.

    Raises: TypeError if ``datapipe`` is no node.
    """
    if not is_node(datapipe):
        raise TypeError(f"traverse_dps needs a datapipe, got {datapipe!r} of type {type(datapipe).__name__}")
    return {id(datapipe): (datapipe, _inputs_graph(datapipe, frozenset([id(datapipe)]), {}))}


def _inputs_graph(node: DataPipe, path: frozenset[int], done: dict[int, DataPipeGraph]) -> DataPipeGraph:
    if id(node) in done:
        return done[id(node)]
    inputs = inputs_of(node)
    below = {id(item): (item, _inputs_graph(item, path | {id(item)}, done)) for item in inputs if id(item) not in path}
    if all(id(item) in done for item in inputs):  # nothing was cut, so it is the same wherever the node is reached from
        done[id(node)] = below
    return below


def find_dps(graph: DataPipeGraph, dp_type: type) -> list[Any]:
    """The nodes of exactly the class ``dp_type``, each once, last ones first."""
    return [node for node in _depth_first(graph, set()) if type(node) is dp_type]


def _depth_first(graph: DataPipeGraph, seen: set[int]) -> Iterable[DataPipe]:
    for key, (node, below) in graph.items():
        if key not in seen:
            seen.add(key)
            yield node
            yield from _depth_first(below, seen)


def list_dps(graph: DataPipeGraph, exclude_dps: DataPipe | Iterable[DataPipe] | None = None) -> list[DataPipe]:
    """All nodes, each once, breadth first from the last one on; without ``exclude_dps`` and all that these read."""
    excluded: Any = [exclude_dps] if is_node(exclude_dps) else exclude_dps or []
    seen = {id(node) for root in excluded for node in list_dps(traverse_dps(root))}
    found: list[DataPipe] = []
    waiting = deque([graph])
    while waiting:
        for key, (node, below) in waiting.popleft().items():
            if key not in seen:
                seen.add(key)
                found.append(node)
                waiting.append(below)
    return found


def replace_dp(graph: DataPipeGraph, old_datapipe: DataPipe, new_datapipe: DataPipe) -> DataPipeGraph:
    """Let all that read ``old_datapipe`` read ``new_datapipe``, which may itself read the old one; the new graph.

    Changes the nodes of ``graph`` in place. Raises: ValueError if ``old_datapipe`` is not in ``graph``.
    """
    nodes = list_dps(graph)
    if not any(node is old_datapipe for node in nodes):
        raise ValueError(f"{node_name(old_datapipe)} is not in the graph of {node_name(_last(graph))}")
    for node in nodes:
        if node is not new_datapipe:  # it may read the old one
            changed = with_inputs(node, lambda item: new_datapipe if item is old_datapipe else item)
            vars(node).update(vars(changed))
    return traverse_dps(new_datapipe if id(old_datapipe) in graph else _last(graph))


def remove_dp(graph: DataPipeGraph, datapipe: DataPipe) -> DataPipeGraph:
    """Let all that read ``datapipe`` read its input instead; the new graph. Changes the nodes of ``graph`` in place.

    Raises: RuntimeError if ``datapipe`` has no input, or several.
    """
    inputs = inputs_of(datapipe)
    if not inputs:
        raise RuntimeError(f"Cannot remove the source DataPipe {node_name(datapipe)}: nothing could take its place")
    if len(inputs) > 1:
        raise RuntimeError(
            f"Cannot remove the receiving DataPipe {node_name(datapipe)}: it has {len(inputs)} inputs, and only one "
            "could take its place"
        )
    return replace_dp(graph, datapipe, inputs[0])


def _last(graph: DataPipeGraph) -> DataPipe:
    return next(iter(graph.values()))[0]
