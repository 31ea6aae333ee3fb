"""A loader state on one screen: where the run stands, and what of each node is kept. Nothing that is in it is run."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchpipe.state.codec import decode, from_text, opaque_notes
from torchpipe.state.cursor import Cursor
from torchpipe.state.inspect import inspect
from torchpipe.state.rotation import Rotation

__all__ = ["states_in_shards", "summary"]

_MOST_LINES = 40
_MOST_TEXT = 110
_MOST_LEVELS = 200
_MOST_NUMBERS = 8  # a longer list is counted
_NODE = re.compile(r"\d+ (?P<name>\w[\w.]*)\(")
_APART = {"inputs", "functions", "torchpipe.ended"}  # in a node's state: what is not its own position
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 40


@dataclass
class _Node:
    """A line of a graph's description."""

    name: str
    inputs: list[int]


@dataclass
class _Found:
    """What is in a position: of each shard, a cursor and, by the numbers of nodes, their own states."""

    cursors: list[Cursor] = field(default_factory=list)
    states: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)


def summary(state: Mapping[str, Any] | bytes) -> str:
    """At most 40 lines about a loader's ``state_dict()``; :func:`~torchpipe.state.inspect` has the rest.

    Of each node, numbers are shown from the least to the greatest of all shards, and what buffers hold is counted, in
    all shards together. Raises: StateError when the bytes are no state.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("payload"), bytes | str):
        return _cut(inspect(state).splitlines())
    data = state["payload"]
    data = from_text(data) if isinstance(data, str) else data
    payload = decode(data, keep_opaque=True)
    payload = payload if isinstance(payload, dict) else {}
    lines = _about_graph(state, payload, data) if "graph" in payload else _about_dataset(state, payload, data)
    if "claims" in state:
        lines.append("has claims, which the rank that saved it alone can take up")
    opaque = dict.fromkeys(f"{name} in {node}" if node else name for name, node in opaque_notes(data))
    if opaque:
        lines.append(f"has opaque items, which load with allow_pickle=True alone: {', '.join(opaque)}")
    return _cut(lines)


def states_in_shards(position: Any, graph: str) -> dict[int, list[Mapping[str, Any]]]:
    """Of a loader's position: by the number of a node in ``graph``, its state in each shard that has a snapshot."""
    found = _Found()
    _collect(position, _nodes(graph), found, 0)
    return found.states


def _cut(lines: list[str]) -> str:
    lines = [line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 3] + "..." for line in lines]
    if len(lines) > _MOST_LINES:
        lines = [*lines[: _MOST_LINES - 1], f"... and {len(lines) - _MOST_LINES + 1} more lines: --full shows all"]
    return "\n".join(lines)


def _about_graph(state: Mapping[str, Any], payload: Mapping[str, Any], data: bytes) -> list[str]:
    nodes = _nodes(payload["graph"])
    lines = [
        f"epoch {_short(state.get('epoch'))}, {_short(state.get('delivered'))} items delivered, "
        f"seed {_short(state.get('seed'))}",
        f"rank {_short(state.get('rank'))} of {_short(state.get('world_size'))}, "
        f"{_short(state.get('num_shards'))} shards",
        f"graph {_short(state.get('fingerprint'))} of {len(nodes)} nodes; {len(data):,} bytes",
    ]
    return lines + _about_position(payload.get("position"), nodes)


def _about_dataset(state: Mapping[str, Any], payload: Mapping[str, Any], data: bytes) -> list[str]:
    length = state.get("length")
    size = f" of {_short(length)}" if type(length) is int and length >= 0 else ""
    lines = [
        f"epoch {_short(state.get('epoch'))}, {_short(state.get('delivered'))} batches delivered",
        f"{_short(state.get('dataset'))} dataset{size}, batch_size {_short(state.get('batch_size'))}, "
        f"sampler {_short(state.get('sampler'))}; {len(data):,} bytes",
    ]
    order, batches = payload.get("order"), payload.get("batches")
    for name, part in (("order", order), ("batches", batches)):
        if isinstance(part, dict):
            own = [f"{_short(key)} {_over_shards([value])}" for key, value in part.items() if key != "stream"]
            lines.append(f"{name}: {', '.join(own) or 'nothing but the number'}")
    stream = batches.get("stream") if isinstance(batches, dict) else None
    return lines + (_about_position(stream, []) if stream is not None else [])


def _about_position(position: Any, nodes: list[_Node]) -> list[str]:
    if position is None:
        return ["at the start of the epoch"]
    found = _Found()
    _collect(position, nodes, found, 0)
    lines = []
    if found.cursors:
        counts = [cursor.count for cursor in found.cursors]
        again = [cursor.skip for cursor in found.cursors]
        lines.append(f"each shard gave {_range(counts)} items; a resume makes {sum(again)} of them again")
    width = max((len(f"{number} {nodes[number].name}") for number in found.states), default=0)
    for number in sorted(found.states):
        own = _own(found.states[number])
        if own:
            lines.append(f"  {f'{number} {nodes[number].name}':<{width}}  {own}")
    return lines


def _collect(value: Any, nodes: list[_Node], found: _Found, level: int) -> None:
    """Look for merges of shards, however many nodes of the main section are over them."""
    if not isinstance(value, Mapping) or level > _MOST_LEVELS:
        return
    outer = Cursor.from_state(value)
    if outer is not None:
        if outer.snapshot is not None:
            _collect(decode(outer.snapshot, keep_opaque=True), nodes, found, level + 1)
        return
    if Rotation.is_one(value):
        shards = value["shards"] if isinstance(value["shards"], list) else []
        for cursor in filter(None, map(Cursor.from_state, shards)):
            found.cursors.append(cursor)
            snapshot = {} if cursor.snapshot is None else decode(cursor.snapshot, keep_opaque=True)
            iterator = snapshot.get("iterator") if isinstance(snapshot, dict) else None
            for number, own in _matched(iterator, nodes).items():
                found.states.setdefault(number, []).append(own)
        return
    inputs = value.get("inputs")
    for item in inputs if isinstance(inputs, list) else []:
        _collect(item, nodes, found, level + 1)


def _nodes(text: Any) -> list[_Node]:
    nodes: list[_Node] = []
    for line in text.splitlines() if isinstance(text, str) else []:
        named = _NODE.match(line)
        wiring = line.rpartition(" <- ")[2].split() if " <- " in line else []
        inputs = [int(number) for number in wiring] if all(map(str.isdecimal, wiring)) else []
        nodes.append(_Node(named["name"] if named else "?", [number for number in inputs if number < len(nodes)]))
    return nodes


def _matched(state: Any, nodes: list[_Node]) -> dict[int, Mapping[str, Any]]:
    """The states of nodes by their numbers: of the last node from which on all of ``state`` has its place."""
    tried: dict[tuple[int, int], dict[int, Mapping[str, Any]] | None] = {}
    for root in reversed(range(len(nodes))):
        match = _match(state, root, nodes, tried, 0)
        if match is not None:
            return match
    return {}


def _match(
    state: Any, number: int, nodes: list[_Node], tried: dict[tuple[int, int], Any], level: int
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


def _own(states: list[Mapping[str, Any]]) -> str:
    names = dict.fromkeys(key for state in states for key in state if key not in _APART)
    told = ((name, _over_shards([state[name] for state in states if name in state])) for name in names)
    return ", ".join(f"{_short(name)} {text}" for name, text in told if text)


def _over_shards(values: list[Any]) -> str:
    """Of one thing in all shards. Empty where there is nothing that a person would look for."""
    first = values[0]
    if all(type(value) is bool for value in values):
        return "true" if any(values) else ""
    if all(type(value) is int for value in values):
        return _range(values)
    if all(type(value) is float for value in values):
        return _range([round(value, 6) for value in values])
    if all(isinstance(value, dict) and type(value.get("draws")) is int for value in values):
        return f"{_range([value['draws'] for value in values])} draws"
    if all(isinstance(value, list | tuple | dict) for value in values):
        if all(_is_few(value) and len(value) == len(first) for value in values):
            sums = [sum(column) for column in zip(*values)]
            return str(sums) if any(sums) and not any(type(item) is float for item in first) else ""
        return f"of {sum(map(len, values)):,}"
    if all(isinstance(value, bytes) for value in values):
        return f"of {sum(map(len, values)):,} bytes"
    texts = set(map(_short, values))
    return texts.pop() if len(texts) == 1 else "various"


def _is_few(value: Any) -> bool:
    return type(value) is list and 0 < len(value) <= _MOST_NUMBERS and {bool, int, float}.issuperset(map(type, value))


def _range(values: list[Any]) -> str:
    least, most = min(values), max(values)
    return _short(least) if least == most else f"{_short(least)} to {_short(most)}"


def _short(value: Any) -> str:
    if type(value) is str and value.isprintable() and len(value) <= 40:
        return value
    try:
        return _REPR.repr(value)
    except Exception:  # an integer of thousands of digits, say
        return f"a {type(value).__name__}"
