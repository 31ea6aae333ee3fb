"""Show a loader state to a person, without running anything that is in it.

The states of nodes in a loader's position: from all shards, beside the nodes that they belong to.

Runs in every process. Nothing that is in a state is run.
"""

from __future__ import annotations

import re
import reprlib
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchpipe.state.codec import decode, from_text, opaque_notes
from torchpipe.state.cursor import Cursor, Rotation

__all__ = ["Found", "GraphLine", "found_in", "inspect"]

_MOST_LEVELS_OF_NODES = 200
_NODE = re.compile(r"\d+ (?P<name>\w[\w.]*)\(")


@dataclass
class GraphLine:
    """A line of a graph's description."""

    name: str
    inputs: list[int]


@dataclass
class Found:
    """The content of a position: of each shard, a cursor and, by the numbers of nodes, their own states."""

    nodes: list[GraphLine]
    cursors: list[Cursor] = field(default_factory=list)
    states: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)


def found_in(position: Any, graph: Any) -> Found:
    """The content of ``position``; ``graph`` describes its nodes. Raises: StateError for damaged snapshots."""
    found = Found(_nodes(graph))
    _collect(position, found, 0)
    return found


def _collect(value: Any, found: Found, level: int) -> None:
    """Look for merges of shards, however many nodes of the main section are over them."""
    if not isinstance(value, Mapping) or level > _MOST_LEVELS_OF_NODES:
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


def _nodes(text: Any) -> list[GraphLine]:
    nodes: list[GraphLine] = []
    for line in text.splitlines() if isinstance(text, str) else []:
        named = _NODE.match(line)
        wiring = line.rpartition(" <- ")[2].split() if " <- " in line else []
        inputs = [int(number) for number in wiring] if all(map(str.isdecimal, wiring)) else []
        nodes.append(GraphLine(named["name"] if named else "?", [number for number in inputs if number < len(nodes)]))
    return nodes


def _matched(state: Any, nodes: list[GraphLine]) -> dict[int, Mapping[str, Any]]:
    """The states of nodes by their numbers: of the last node from which on all of ``state`` has its place."""
    tried: dict[tuple[int, int], dict[int, Mapping[str, Any]] | None] = {}
    for root in reversed(range(len(nodes))):
        match = _match(state, root, nodes, tried, 0)
        if match is not None:
            return match
    return {}


def _match(
    state: Any, number: int, nodes: list[GraphLine], tried: dict[tuple[int, int], Any], level: int
) -> dict[int, Mapping[str, Any]] | None:
    key = (id(state), number)
    if not isinstance(state, Mapping) or level > _MOST_LEVELS_OF_NODES:
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


_WIDTH = 110
_MOST_LEVELS = 40
_MOST_NUMBERS = 8  # a longer list is counted
_APART = {"inputs", "functions", "torchpipe.ended"}  # in a node's state: what is not its own position
_REPR = reprlib.Repr()
_REPR.maxstring, _REPR.maxother = 40, 72


def inspect(state: Mapping[str, Any] | bytes) -> str:
    """A loader's ``state_dict()`` as text: where the run stands, and what is kept of each node. Or encoded bytes.

    Of each node, numbers are shown from the least to the greatest of all shards, and what buffers hold is counted, in
    all shards together. Opaque items are named; nothing is unpickled. Raises: StateError when the bytes are no state.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("payload"), bytes | str):
        lines = list(_parts(state if isinstance(state, Mapping) else decode(state, keep_opaque=True)))
    else:
        data = state["payload"]
        data = from_text(data) if isinstance(data, str) else data
        payload = decode(data, keep_opaque=True)
        payload = payload if isinstance(payload, dict) else {}
        about = _about_graph if "graph" in payload else _about_dataset
        lines = [*about({key: _short(value) for key, value in state.items()}, payload, f"{len(data):,} bytes")]
        if "claims" in state:
            lines.append("has claims, which the rank that saved it alone can take up")
        opaque = dict.fromkeys(f"{name} in {node}" if node else name for name, node in opaque_notes(data))
        if opaque:
            lines.append(f"has opaque items, which load with allow_pickle=True alone: {', '.join(opaque)}")
    return "\n".join(part for line in lines for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    further = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, _WIDTH, subsequent_indent=further, drop_whitespace=True)


def _about_graph(told: dict[str, str], payload: Mapping[str, Any], size: str) -> Iterator[str]:
    """``told``: what the state says in the open, as text."""
    yield f"epoch {told.get('epoch')}, {told.get('delivered')} items delivered, seed {told.get('seed')}"
    yield f"rank {told.get('rank')} of {told.get('world_size')}, {told.get('num_shards')} shards"
    yield f"graph {told.get('fingerprint')} of {len(str(payload['graph']).splitlines())} nodes; {size}"
    yield from _about_position(payload.get("position"), payload["graph"])


def _about_dataset(told: dict[str, str], payload: Mapping[str, Any], size: str) -> Iterator[str]:
    yield f"epoch {told.get('epoch')}, {told.get('delivered')} batches delivered"
    sized = told.get("dataset") != "iterable"  # else torch's loader has a sampler of its own, without a meaning
    what = f" of {told.get('length')}, sampler {told.get('sampler')}" if sized else ""
    yield f"{told.get('dataset')} dataset{what}, batch_size {told.get('batch_size')}; {size}"
    for name, part in payload.items():
        if name not in ("identity", "numbers") and isinstance(part, dict) and part:
            stream = part.get("stream")
            yield f"{_short(name)}:"
            yield from _parts({key: value for key, value in part.items() if key != "stream"}, 1)
            if stream is not None:
                yield from _about_position(stream, "")


def _about_position(position: Any, graph: Any) -> Iterator[str]:
    if position is None:
        yield "at the start of the epoch"
        return
    found = found_in(position, graph)
    if found.cursors:
        counts, again = [cursor.count for cursor in found.cursors], sum(cursor.skip for cursor in found.cursors)
        yield f"each shard gave {_range(counts)} items; a resume makes {again} of them again"
    for number, states in sorted(found.states.items()):
        names = dict.fromkeys(key for state in states for key in state if key not in _APART)
        told = (f"{_short(name)} {_text([state[name] for state in states if name in state])}" for name in names)
        if names:
            yield f"  {number} {found.nodes[number].name}  {', '.join(told)}"


def _parts(value: Any, level: int = 0) -> Iterator[str]:
    """The lines of a value: one of its plain parts, and below it those of parts that have parts."""
    pad = "  " * level
    cursor = value if isinstance(value, Cursor) else Cursor.from_state(value)
    if level > _MOST_LEVELS:
        yield f"{pad}..."
    elif cursor is not None:
        where = "the start of the epoch" if cursor.snapshot is None else f"a snapshot of {len(cursor.snapshot)} bytes"
        yield f"{pad}{cursor.skip} items after {where}"
        if cursor.snapshot is not None:
            yield from _parts(decode(cursor.snapshot, keep_opaque=True), level + 1)
    elif isinstance(value, Mapping):
        plain = [f"{_short(key)} {_text([item])}" for key, item in value.items() if not _has_parts(item)]
        if plain:
            yield f"{pad}{', '.join(plain)}"
        for key, item in value.items():
            if _has_parts(item):
                yield f"{pad}{_short(key)}:"
                for part in item if isinstance(item, list) else [item]:
                    yield from _parts(part, level + 1)
    else:
        yield f"{pad}{_text([value])}"


def _has_parts(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Cursor) or (isinstance(first, Mapping) and type(first.get("draws")) is not int)


def _text(values: list[Any]) -> str:
    """The values of one thing in all shards, as text."""
    first = values[0]
    if all(type(value) is int for value in values):
        return _range(values)
    if all(type(value) is float for value in values):
        return _range([round(value, 6) for value in values])
    if all(isinstance(value, dict) and type(value.get("draws")) is int for value in values):
        return f"{_range([value['draws'] for value in values])} draws"
    if all(_is_few(value) and len(value) == len(first) for value in values):
        return str([sum(column) for column in zip(*values)])
    if all(isinstance(value, list | tuple | dict) for value in values):
        return f"of {sum(map(len, values)):,}"
    if all(isinstance(value, bytes) for value in values):
        return f"of {sum(map(len, values)):,} bytes"
    texts = set(map(_short, values))
    return texts.pop() if len(texts) == 1 else "various"


def _is_few(value: Any) -> bool:
    return type(value) is list and 0 < len(value) <= _MOST_NUMBERS and {bool, int}.issuperset(map(type, value))


def _range(values: list[Any]) -> str:
    least, most = min(values), max(values)
    return _short(least) if least == most else f"{_short(least)} to {_short(most)}"


def _short(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is str and value.isprintable() and len(value) <= 40:
        return value
    try:
        return _REPR.repr(value)
    except Exception:  # an integer of thousands of digits, say
        return f"a {type(value).__name__}"
