"""The states of nodes in a loader's position: from all shards, beside the nodes that they belong to.

Runs in every process. Nothing that is in a state is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchpipe.state.codec import decode
from torchpipe.state.cursor import Cursor
from torchpipe.state.rotation import Rotation

__all__ = ["Found", "Node", "found_in"]

_MOST_LEVELS = 200
_NODE = re.compile(r"\d+ (?P<name>\w[\w.]*)\(")


@dataclass
class Node:
    """A line of a graph's description."""

    name: str
    inputs: list[int]


@dataclass
class Found:
    """The content of a position: of each shard, a cursor and, by the numbers of nodes, their own states."""

    nodes: list[Node]
    cursors: list[Cursor] = field(default_factory=list)
    states: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)


def found_in(position: Any, graph: Any) -> Found:
    """The content of ``position``; ``graph`` describes its nodes. Raises: StateError for damaged snapshots."""
    found = Found(_nodes(graph))
    _collect(position, found, 0)
    return found


def _collect(value: Any, found: Found, level: int) -> None:
    """Look for merges of shards, however many nodes of the main section are over them."""
    if not isinstance(value, Mapping) or level > _MOST_LEVELS:
        return
    outer = Cursor.from_state(value)
    if outer is not None:
        if outer.snapshot is not None:
            _collect(decode(outer.snapshot, keep_opaque=True), found, level + 1)
        return
    if Rotation.is_one(value):
        shards = value["shards"] if isinstance(value["shards"], list) else []
        for cursor in filter(None, map(Cursor.from_state, shards)):
            found.cursors.append(cursor)
            snapshot = {} if cursor.snapshot is None else decode(cursor.snapshot, keep_opaque=True)
            iterator = snapshot.get("iterator") if isinstance(snapshot, dict) else None
            for number, own in _matched(iterator, found.nodes).items():
                found.states.setdefault(number, []).append(own)
        return
    inputs = value.get("inputs")
    for item in inputs if isinstance(inputs, list) else []:
        _collect(item, found, level + 1)


def _nodes(text: Any) -> list[Node]:
    nodes: list[Node] = []
    for line in text.splitlines() if isinstance(text, str) else []:
        named = _NODE.match(line)
        wiring = line.rpartition(" <- ")[2].split() if " <- " in line else []
        inputs = [int(number) for number in wiring] if all(map(str.isdecimal, wiring)) else []
        nodes.append(Node(named["name"] if named else "?", [number for number in inputs if number < len(nodes)]))
    return nodes


def _matched(state: Any, nodes: list[Node]) -> dict[int, Mapping[str, Any]]:
    """The states of nodes by their numbers: of the last node from which on all of ``state`` has its place."""
    tried: dict[tuple[int, int], dict[int, Mapping[str, Any]] | None] = {}
    for root in reversed(range(len(nodes))):
        match = _match(state, root, nodes, tried, 0)
        if match is not None:
            return match
    return {}


def _match(
    state: Any, number: int, nodes: list[Node], tried: dict[tuple[int, int], Any], level: int
) -> dict[int, Mapping[str, Any]] | None:
    key = (id(state), number)
    if not isinstance(state, Mapping) or level > _MOST_LEVELS:
        return None
    if key not in tried:
        tried[key] = None
        below = state.get("inputs", [])
        parts = below if isinstance(below, list) else []
        placed = list(zip(parts, nodes[number].inputs)) if len(parts) == len(nodes[number].inputs) else None
        found = None
        if placed is not None:
            found = _joined([_match(part, place, nodes, tried, level + 1) for part, place in placed])
        if found is not None:
            found = {number: state, **found}
        elif len(parts) == 1:  # of a node that has no line, since it does not alter the stream
            found = _match(parts[0], number, nodes, tried, level + 1)
        tried[key] = found
    match: dict[int, Mapping[str, Any]] | None = tried[key]
    return match


def _joined(parts: list[dict[int, Mapping[str, Any]] | None]) -> dict[int, Mapping[str, Any]] | None:
    joined: dict[int, Mapping[str, Any]] = {}
    for part in parts:
        if part is None:
            return None
        joined |= part
    return joined
