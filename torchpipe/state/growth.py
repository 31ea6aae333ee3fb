"""A state of a graph whose ``mix`` has got further inputs since: what was there stays where it was, they begin.

Runs in the user's process. The state becomes what it would be if these inputs had been there from the start, with a
weight of 0. It has to be exact: items that are made again would be made by nodes with other numbers, and so other
random streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from torchpipe.errors import StateMismatchError
from torchpipe.state.codec import decode, encode
from torchpipe.state.cursor import Cursor
from torchpipe.state.flat import FlatState, damaged
from torchpipe.state.ranks import delivered_position, with_rotations
from torchpipe.state.rotation import Rotation
from torchpipe.state.summary import node_states

__all__ = ["grown"]

_LINE = re.compile(r"(?P<number>\d+) (?P<text>.*?)(?: <-(?P<wiring>(?: \d+)+))?$")
_REFERENCE = re.compile(r"#(\d{1,5})(?=[,)])")
_INPUTS = re.compile(r"datapipes=\((?:#\d+(?:, )?)*,?\)")
_PADDED = {"lacks": 0.0, "rounds": 0, "ended": False, "gave": False, "given": 0, "now": 0.0}


@dataclass(frozen=True)
class _Growth:
    """``more`` nodes were put in before node ``mixer``, which has got ``inputs`` more."""

    mixer: int
    more: int
    inputs: int

    def number(self, old: int) -> int:
        """What a node of before is now."""
        return old + self.more if old >= self.mixer else old


def grown(flat: FlatState, graph: str, *, allow_pickle: bool) -> FlatState | None:
    """``flat`` as a state of ``graph``; None unless that is its graph with further inputs of one ``mix``, its last.

    Raises: StateMismatchError for a state that is not exact, and where the position of the ``mix`` cannot be told.
    """
    growth = _growth(flat.graph.splitlines(), graph.splitlines())
    if growth is None:
        return None
    if flat.position is None:
        return replace(flat, graph=graph)
    shards = flat.numbers["num_shards"]

    def moved(state: dict[str, Any]) -> Rotation:
        rotation = Rotation.from_state(state, shards)
        cursors = tuple(_moved(cursor, flat.graph, growth, allow_pickle) for cursor in rotation.cursors)
        return replace(rotation, cursors=cursors)

    return replace(flat, graph=graph, position=with_rotations(delivered_position(flat.position), moved))


def _growth(saved: list[str], here: list[str]) -> _Growth | None:
    more = len(here) - len(saved)
    first = next((number for number, pair in enumerate(zip(saved, here)) if pair[0] != pair[1]), len(saved))
    for mixer in range(first, len(saved)) if more > 0 else ():
        if not saved[mixer].startswith(f"{mixer} Mixer(") or saved[:mixer] != here[:mixer]:
            continue
        old, new = _LINE.match(saved[mixer]), _LINE.match(here[mixer + more])
        if old is None or new is None or not here[mixer + more].startswith(f"{mixer + more} Mixer("):
            continue
        inputs = [(match["wiring"] or "").split() for match in (old, new)]
        growth = _Growth(mixer, more, len(inputs[1]) - len(inputs[0]))
        same = _INPUTS.sub("", old["text"]) == _INPUTS.sub("", new["text"])
        if not same or growth.inputs < 1 or inputs[1][: len(inputs[0])] != inputs[0]:
            continue
        if [_renumbered(line, growth) for line in saved[mixer + 1 :]] == here[mixer + more + 1 :]:
            return growth
    return None


def _renumbered(line: str, growth: _Growth) -> str:
    match = _LINE.match(line)
    if match is None:
        return line
    text = _REFERENCE.sub(lambda found: f"#{growth.number(int(found[1]))}", match["text"])
    wiring = "".join(f" {growth.number(int(number))}" for number in (match["wiring"] or "").split())
    return f"{growth.number(int(match['number']))} {text}" + (wiring and f" <-{wiring}")


def _moved(cursor: Cursor, graph: str, growth: _Growth, allow_pickle: bool) -> Cursor:
    if cursor.skip:
        raise StateMismatchError(
            f"mix() has {growth.inputs} inputs more than when the state was saved, which an exact state alone can "
            f"take: of a shard, {cursor.skip} items since its last snapshot would be made again. Load the state into "
            "the graph that saved it, take an item, and save state_dict(exact=True); load that into this one"
        )
    if cursor.snapshot is None:
        return cursor
    snapshot = decode(cursor.snapshot, allow_pickle=allow_pickle)
    mixer = node_states(snapshot.get("iterator"), graph).get(growth.mixer) if isinstance(snapshot, dict) else None
    if not isinstance(mixer, dict):
        raise StateMismatchError(
            "mix() has more inputs than when the state was saved, and where it stood cannot be told here: branches of "
            "one pass meet in the graph, or it has to be replayed from its start. Begin a new loader, or declare the "
            "input from the start, with weight 0"
        )
    try:
        _pad(mixer, growth.inputs)
        _renumber(snapshot, growth)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise damaged(f"where its mix stands is no such position ({error})") from error
    return replace(cursor, snapshot=encode(snapshot))


def _renumber(snapshot: dict[str, Any], growth: _Growth) -> None:
    """What a shard's snapshot says of nodes by their numbers."""
    snapshot["premises"] = [
        [growth.number(number), _padded_steps(value, growth.inputs) if number == growth.mixer else value]
        for number, value in snapshot.get("premises", [])
    ]
    if "before" in snapshot:
        snapshot["before"] = {growth.number(number): value for number, value in snapshot["before"].items()}


def _pad(state: dict[str, Any], inputs: int) -> None:
    for name, nothing in _PADDED.items():
        if isinstance(state.get(name), list):
            state[name] = [*state[name], *[nothing] * inputs]
    state["weights"] = _padded_steps(state["weights"], inputs)
    state["inputs"] = [*state["inputs"], *[Cursor().to_state() for _ in range(inputs)]]


def _padded_steps(steps: Any, inputs: int) -> Any:
    return [[start, [*weights, *[0.0] * inputs]] for start, weights in steps]
