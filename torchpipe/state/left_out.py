"""The items that ``on_error`` has left out, from a state. Runs nothing that is in the state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from torchpipe.state.codec import decode
from torchpipe.state.cursor import Cursor

__all__ = ["LEFT_OUT", "MOST_NOTED", "LeftOut", "gathered", "is_note", "left_out"]

MOST_NOTED = 1000

LEFT_OUT = "torchpipe.on_error"
"""The key of it in the state of a node, which no user's item has: a dict of ``count`` and ``noted``."""


class LeftOut(NamedTuple):
    """An item, or all items of a batch: which node raised, what, and for what item, as text."""

    node: str
    error: str
    item: str


def left_out(state: Mapping[str, Any] | bytes) -> tuple[int, list[LeftOut]]:
    """The number of items that ``on_error("skip")`` had left out in this epoch, and the first 1,000 of each shard.

    ``state`` is that of a loader, of an iterator, or an encoded snapshot. A loader's shards tell of it with their
    snapshots, so the last few may be missing; the logger ``torchpipe`` has told of all. Raises: StateError when the
    bytes are no state.
    """
    payload = state.get("payload") if isinstance(state, Mapping) else state
    found = list(_found(decode(payload, keep_opaque=True) if isinstance(payload, bytes) else state))
    recorded = [LeftOut(*texts) for entry in found for *texts, _ in entry["noted"]]
    return sum(entry["count"] for entry in found), recorded


def gathered(states: Iterable[Any]) -> dict[str, Any]:
    """One note of all that ``states`` tell, as :func:`is_note` has it."""
    found = [entry for state in states for entry in _found(state)]
    recorded = [list(texts) for entry in found for texts in entry["noted"]]
    return {"count": sum(entry["count"] for entry in found), "noted": recorded[:MOST_NOTED]}


def is_note(entry: Any) -> TypeGuard[dict[str, Any]]:
    """Is this what ``on_error`` puts into a state: how many items, and for each of the first times that it left out
    some, three texts and how many these were?
    """
    if not isinstance(entry, dict) or entry.keys() != {"count", "noted"}:
        return False
    count, recorded = entry["count"], entry["noted"]
    if type(count) is not int or type(recorded) is not list or not all(map(_is_record, recorded)):
        return False
    answers = sum(entry[3] for entry in recorded)
    return answers == count if len(recorded) < MOST_NOTED else len(recorded) == MOST_NOTED and answers <= count


def _is_record(entry: Any) -> bool:
    return type(entry) is list and [type(part) for part in entry] == [str, str, str, int] and entry[3] > 0


def _found(value: Any) -> Iterator[dict[str, Any]]:
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, Cursor):
            if value.snapshot is not None:
                stack.append(decode(value.snapshot, keep_opaque=True))
        elif isinstance(value, Mapping):
            entry = value.get(LEFT_OUT)
            if is_note(entry):
                yield entry
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
