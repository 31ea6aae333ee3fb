"""The values in a state, as rows of a table: read, and checked against the present objects.

Runs in every process. A state may come from anybody: nothing is made here, and nothing is changed.
"""

from __future__ import annotations

import array
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchpipe.errors import StateError, StateMismatchError
from torchpipe.randomness.generators import MADE, put_generator
from torchpipe.state import decode
from torchpipe.state.flat import damaged, shown
from torchpipe.values.object_contents import ATTRIBUTES, NAMED, Contents, is_constant, name_of
from torchpipe.values.object_tracker import Link, Node, ObjectTracker, Saved

__all__ = ["Row", "read"]

_KINDS = ("code", "tuple", "list", "dict", "set", "object", "enum", "generator", "memory", "array", "tensor", "data")


@dataclass(slots=True)
class Row:
    """``node``: the present object, None for one that is to be made. ``contents``: None if it is as it was."""

    node: Node | None
    contents: Contents | None
    kind: str  # name of its type

    @property
    def is_data(self) -> bool:
        return self.contents is not None and self.contents.kind == "data"


def read(tracker: ObjectTracker, saved: Saved) -> list[Row]:
    """Raises: StateError for what is damaged, StateMismatchError for what other owners have kept."""
    if saved == []:
        return []
    if type(saved) is not dict or type(saved.get("objects")) is not list:
        raise damaged(f"what it keeps of objects is {shown(saved)}")
    try:
        rows = [_read_row(tracker, row, len(saved["objects"])) for row in saved["objects"]]
        for row in rows:
            if row.contents is not None:
                _check_row(tracker, row, row.contents, rows)
    except StateError:
        raise
    except Exception as error:
        raise damaged(f"what it keeps of objects cannot be read: {error!r:.200}") from None
    return rows


def _read_row(tracker: ObjectTracker, row: Any, count: int) -> Row:
    steps, type_name, kind, fixed, parts, links = row
    node = None
    if steps is not None:
        node = tracker.places.get(tuple(steps))
        if node is None or name_of(type(node.value)) != type_name:
            present = "nothing" if node is None else f"a {type(node.value).__name__}"
            raise StateMismatchError(
                f"the state has a {shown(type_name)} at {''.join(map(str, steps))[:200]}, and the loader has {present} "
                "there, no place for it: make the loader as it was when the state was saved"
            )
    if kind is None:
        if node is None:
            raise damaged("an object of its own is not described")
        return Row(node, None, type_name)
    if type(parts) is np.ndarray and kind == "list" and parts.ndim == 1 and parts.dtype.kind in "if":
        return Row(node, Contents(kind, fixed, parts.tolist()), type_name)
    if kind not in (*_KINDS, "objects", "buffer", "encoded") or type(parts) is not list:
        raise damaged(f"what it keeps of a {shown(type_name)} is {shown(kind)}")
    parts = list(parts)
    if not all(map(is_constant, parts)):
        raise damaged(f"what it keeps of a {shown(type_name)} is no plain data")
    for place, number in links:
        if type(number) is not int or not 0 <= number < count:
            raise damaged(f"it refers to object {shown(number)} of {count}")
        parts[place] = Link(number)
    if kind == "memory":
        fixed = [fixed[0], np.frombuffer(fixed[1], np.uint8)]
    return Row(node, Contents(kind, fixed, parts, constant=not links), type_name)


def _check_row(tracker: ObjectTracker, row: Row, contents: Contents, rows: list[Row]) -> None:
    node, fixed, parts = row.node, contents.fixed, contents.parts
    if contents.kind == "data":
        return
    if node is not None and node.contents.kind != contents.kind:
        raise StateMismatchError(f"the state has {node.path()} as a {contents.kind}: make the loader as it was")
    match contents.kind:
        case "object":
            how, args, form, names, items, pairs = fixed
            if len(parts) != 1 + args + len(names) + items + 2 * pairs or min(args, items, pairs) < 0:
                raise damaged(f"an object of it has {len(parts)} parts")
            if node is None or [how, args] != node.contents.fixed[:2]:
                function = rows[parts[0].number] if type(parts[0]) is Link else row
                present = function.contents if function.node is None else function.node.contents
                if present is None or present.kind != "code" or not tracker.may_make(row.kind, how, present.fixed):
                    raise StateMismatchError(
                        f"the state has an object of the class {shown(row.kind)}, of which the loader holds none: make "
                        "the loader as it was when the state was saved"
                    )
            before = () if node is None else node.contents.fixed[3]
            for number, part in enumerate(parts):
                new_data = type(part) is Link and rows[part.number].node is None and rows[part.number].is_data
                if new_data and (node is None or form != ATTRIBUTES or not 0 <= number - 1 - args < len(names)):
                    raise damaged("it has data in the place of an object")
            cls = tracker.code_named(row.kind) if node is None else type(node.value)
            if form not in (*NAMED, "none", "state", "state of parts") or type(names) is not list:
                raise damaged(f"the state of an object of it is {shown(form)}")
            for name in names if form == ATTRIBUTES else ():
                if name not in before and not _may_have(cls, name):
                    where = row.kind if node is None else node.path()
                    raise StateMismatchError(
                        f"the state has a value {where}.{name!s:.80}, and there is no place for it"
                    )
        case "code":
            if tracker.code_named(fixed) is None:
                raise StateMismatchError(f"the state has {shown(fixed)}, which the loader does not hold")
        case "generator":
            try:
                put_generator(MADE[fixed[0]](decode(fixed[1])), decode(fixed[1]))
            except Exception as error:
                raise damaged(f"the state of a random generator cannot be used: {error!s:.200}") from None
        case "dict":
            if len(parts) % 2:
                raise damaged("a dict of it has a key without a value")
        case "objects":
            if math.prod(fixed) != len(parts):
                raise damaged(f"an array of it has {len(parts)} objects and the shape {shown(fixed)}")
        case "buffer":
            if len(array.array(fixed[0], fixed[1]) if fixed[0] else fixed[1]) > len(fixed[1]):
                raise damaged("an array of it is longer than its bytes")
        case "encoded":
            decode(fixed[3])


def _may_have(cls: Any, name: Any) -> bool:
    return (
        type(name) is str
        and name.isidentifier()
        and not (name.startswith("__") and name.endswith("__"))
        and not callable(getattr(cls, name, None))
    )
