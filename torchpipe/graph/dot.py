"""A graph as text in DOT, the language of Graphviz. Pure functions."""

from __future__ import annotations

from torchpipe.node.traits import DataPipe, inputs_of, node_name, traits_of, walk

__all__ = ["to_dot"]


def to_dot(datapipe: DataPipe, *, debug: bool = False) -> str:
    """The graph that ends in ``datapipe``, as text for ``dot``: sources blue, the last node green.

    The branches of ``fork`` and the like are left out, and their readers read the fork, unless ``debug``.
    """
    nodes = walk(datapipe)
    branches = {} if debug else {id(node): _shared_input(node) for node in nodes if _shared_input(node) is not None}
    numbers = {id(node): number for number, node in enumerate(node for node in nodes if id(node) not in branches)}
    read = {id(item) for node in nodes for item in inputs_of(node)}
    lines = ["digraph {", "  node [shape=box, style=filled, fillcolor=white, fontname=monospace, fontsize=10]"]
    for node in nodes:
        if id(node) in numbers:
            color = "lightblue" if not inputs_of(node) else "darkolivegreen1" if id(node) not in read else ""
            label = node_name(node).lstrip("_").replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {numbers[id(node)]} [label="{label}"{f", fillcolor={color}" if color else ""}]')
    for node in nodes:
        if id(node) in numbers:
            for item in inputs_of(node):
                source = branches.get(id(item)) or item
                lines.append(f"  {numbers[id(source)]} -> {numbers[id(node)]}")
    return "\n".join([*lines, "}"])


def _shared_input(node: DataPipe) -> DataPipe | None:
    """The node that ``node`` is a branch of, if it is one."""
    inputs = inputs_of(node)
    return inputs[0] if len(inputs) == 1 and traits_of(inputs[0]).shared else None
