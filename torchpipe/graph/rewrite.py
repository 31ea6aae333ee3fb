"""Make a changed copy of a graph; the original's nodes stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torchpipe.node.traits import DataPipe, inputs_of, walk, with_inputs

__all__ = ["find", "replace_node", "replace_nodes", "rewrite"]

N = TypeVar("N")


def find(root: DataPipe, kind: type[N]) -> list[N]:
    """Every node of class ``kind`` (or derived from it) that ``root`` reaches, inputs first."""
    return [node for node in walk(root) if isinstance(node, kind)]


def rewrite(root: DataPipe, change: Callable[[DataPipe], DataPipe]) -> DataPipe:
    """The graph with every node put through ``change``, inputs first.

    ``change`` gets the node with its inputs already rewritten, and returns it or another one; it must not mutate it.
    A node whose inputs stayed the same is passed as it is, so an unchanged graph comes back as the same objects.
    """
    done: dict[int, DataPipe] = {}
    for node in walk(root):
        fresh = node
        if any(done[id(item)] is not item for item in inputs_of(node)):
            fresh = with_inputs(node, lambda item: done[id(item)])
        done[id(node)] = change(fresh)
    return done[id(root)]


def replace_node(root: DataPipe, old: DataPipe, new: DataPipe) -> DataPipe:
    """The graph with ``new`` in the place of ``old``. Raises: ValueError if ``old`` is not in the graph."""
    if not any(node is old for node in walk(root)):
        raise ValueError(f"{type(old).__name__} is not a node of this graph")
    return replace_nodes(root, {id(old): new})


def replace_nodes(root: DataPipe, replacements: Mapping[int, DataPipe]) -> DataPipe:
    """The graph with ``replacements[id(node)]`` in the place of every node that has one."""
    done: dict[int, DataPipe] = {}
    for node in walk(root):
        if id(node) in replacements:
            done[id(node)] = replacements[id(node)]
        elif any(done[id(item)] is not item for item in inputs_of(node)):
            done[id(node)] = with_inputs(node, lambda item: done[id(item)])
        else:
            done[id(node)] = node
    return done[id(root)]
