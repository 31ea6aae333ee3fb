"""Show a loader state to a person, without running anything that is in it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from torchpipe.state.codec import decode, from_text
from torchpipe.state.cursor import Cursor

__all__ = ["inspect"]

_MAX_TEXT = 72
_MAX_DEPTH = 40
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxother, _REPR.maxstring = 4, _MAX_TEXT, _MAX_TEXT


def inspect(state: Mapping[str, Any] | bytes) -> str:
    """A readable, indented picture of a loader's ``state_dict()`` or of an encoded snapshot.

    Snapshots inside the state are opened; items in buffers are counted and shortened; opaque items are shown by type
    and size. Nothing is unpickled. Raises: StateError when the bytes are no state.
    """
    lines: list[str] = []
    if isinstance(state, Mapping):
        for key, value in state.items():
            if key == "payload" and isinstance(value, bytes | str):
                value = from_text(value) if isinstance(value, str) else value
                lines.append(f"payload: {len(value)} bytes")
                _show(decode(value, keep_opaque=True), 1, lines)
            else:
                lines.append(f"{key}: {_short(value)}")
    else:
        _show(decode(state, keep_opaque=True), 0, lines)
    return "\n".join(lines)


def _show(value: Any, depth: int, lines: list[str]) -> None:
    pad = "  " * depth
    cursor = value if isinstance(value, Cursor) else Cursor.from_state(value)
    if depth > _MAX_DEPTH:
        lines.append(f"{pad}...")
    elif cursor is not None:
        where = "the start of the epoch" if cursor.snapshot is None else f"a snapshot of {len(cursor.snapshot)} bytes"
        lines.append(f"{pad}{cursor.skip} items after {where}")
        if cursor.snapshot is not None:
            _show(decode(cursor.snapshot, keep_opaque=True), depth + 1, lines)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "graph" and isinstance(item, str):
                lines.append(f"{pad}graph:")
                lines.extend(f"{pad}  {line}" for line in item.splitlines())
            elif isinstance(item, dict | Cursor) or (isinstance(item, list) and item and isinstance(item[0], dict)):
                lines.append(f"{pad}{_short(key)}:")
                _show(item, depth + 1, lines)
            else:
                lines.append(f"{pad}{_short(key)}: {_short(item)}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, item in enumerate(value):
            lines.append(f"{pad}[{index}]")
            _show(item, depth + 1, lines)
    else:
        lines.append(f"{pad}{_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} items, the first {_short(value[0])}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if type(value) is str and value.isidentifier() and len(value) <= _MAX_TEXT:
        return value
    try:
        text = _REPR.repr(value)
    except Exception as error:  # an integer of thousands of digits, say
        text = f"<{type(value).__name__}, {type(error).__name__}>"
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
