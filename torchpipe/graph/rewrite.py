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
    return _rebuilt(root, lambda _, fresh: change(fresh))


def _rebuilt(root: DataPipe, change: Callable[[DataPipe, DataPipe], DataPipe]) -> DataPipe:
    """``change`` gets the node as it was, and with its inputs as they have become."""
    done: dict[int, DataPipe] = {}
    for node in walk(root):
        fresh = node
        if any(done[id(item)] is not item for item in inputs_of(node)):
            fresh = with_inputs(node, lambda item: done[id(item)])
        done[id(node)] = change(node, fresh)
    return done[id(root)]


def replace_node(root: DataPipe, old: DataPipe, new: DataPipe) -> DataPipe:
    """The graph with ``new`` in the place of ``old``. Raises: ValueError if ``old`` is not in the graph."""
    if not any(node is old for node in walk(root)):
        raise ValueError(
            f"{type(old).__name__} is not a node of this graph: give one that torchpipe.graph.walk() yields"
        )
    return replace_nodes(root, {id(old): new})


def replace_nodes(root: DataPipe, replacements: Mapping[int, DataPipe]) -> DataPipe:
    """The graph with ``replacements[id(node)]`` in the place of every node that has one."""
    return _rebuilt(root, lambda node, fresh: replacements.get(id(node), fresh))
