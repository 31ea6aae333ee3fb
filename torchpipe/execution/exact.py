"""An exact state: a snapshot of each shard at the very position, so that a resume makes nothing again.

Runs in the user's process. Whoever makes the items takes the snapshots. Shards in this process stand at that position,
and are asked. Workers have run ahead of it: others are started beside them, which begin where a resume would, at the
last snapshot before the position, make the items up to there again, and take a snapshot then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from torchpipe.errors import StateError
from torchpipe.execution.shard import Chunk
from torchpipe.node.user_warnings import COMPRESSED, REPLAYS
from torchpipe.state import Cursor, decode, encode
from torchpipe.state.cursor import Rotation

__all__ = ["MakeExact", "check_exact", "cursor_from", "made_exact", "no_exact"]

MakeExact: TypeAlias = Callable[[Mapping[int, Cursor]], Mapping[int, Cursor]]
"""Makes cursors of the same positions without items to drop, for the shards in these places. Raises: StateError."""


def made_exact(state: dict[str, Any], shards: int, make: MakeExact) -> dict[str, Any]:
    """``state``, of a main section over so many ``shards``, with the cursors that ``make`` gives for those that drop
    items. Parts of a pass may still have to be made again: :func:`check_exact`.

    Raises: StateError where items of the main section itself would have to be made again.
    """
    if Rotation.is_one(state):
        known = Rotation.from_state(state, shards)
        made = make({place: known.cursors[place] for place in known.live if known.cursors[place].skip})
        cursors = tuple(made.get(place, cursor) for place, cursor in enumerate(known.cursors))
        return state | replace(known, cursors=cursors).to_state()
    cursor = Cursor.from_state(state)
    if cursor is not None and cursor.snapshot is not None:
        if cursor.skip:
            raise _behind_the_shards(cursor)
        inner = made_exact(decode(cursor.snapshot, allow_pickle=True), shards, make)
        return state | replace(cursor, snapshot=encode(inner)).to_state()
    inputs = state.get("inputs")
    if not isinstance(inputs, list):
        return state
    return state | {"inputs": [made_exact(item, shards, make) for item in inputs]}


def check_exact(state: dict[str, Any], shards: Sequence[int]) -> None:
    """``state`` is of a main section over the shards of these numbers. Raises: StateError if a resume from there makes
    any item again.
    """
    if not _checked(state, shards):
        raise StateError(f"the state is not exact: a node behind the shards keeps no state. {_KEEPS_NONE}")


def _checked(state: Any, shards: Sequence[int]) -> bool:
    """False if no shards were found, and it is no start. Raises: StateError."""
    if Rotation.is_one(state):
        known = Rotation.from_state(state, len(shards))
        for place in known.live:
            if (again := _made_again(known.cursors[place])) is not None:
                raise no_exact(shards[place], known.cursors[place].count, again, _KEEPS_NONE)
        return True
    cursor = Cursor.from_state(state)
    if cursor is not None:
        if cursor.skip:
            raise _behind_the_shards(cursor)
        return cursor.snapshot is None or _checked(decode(cursor.snapshot, keep_opaque=True), shards)
    inputs = state.get("inputs") if isinstance(state, dict) else None
    found = [_checked(item, shards) for item in inputs] if isinstance(inputs, list) else []
    return any(found)


def _made_again(cursor: Cursor) -> str | None:
    """The items that a shard makes again if it goes on from there, in words. Compressed files are only read again."""
    if cursor.skip:
        return f"a node, generator or dataset in it keeps no state, and {cursor.skip} items are made again"
    state = {} if cursor.snapshot is None else decode(cursor.snapshot, keep_opaque=True)
    found = [(name, items) for name, items in state.get(REPLAYS, ()) if not name.startswith(COMPRESSED)]
    return f"{found[0][0]} keeps no state, and its first {found[0][1]} items are made again" if found else None


def _behind_the_shards(cursor: Cursor) -> StateError:
    return StateError(
        f"the state is not exact: {cursor.skip} items that nodes behind the shards have made in this process are made "
        "again. Put these nodes before to_device(), or save after an item that did not raise"
    )


_KEEPS_NONE = (
    "Give it state_dict() and load_state_dict() (a function may return a list in place of an iterator), or save "
    "without exact=True"
)


def cursor_from(chunk: Chunk, shard: int, cursor: Cursor) -> Cursor:
    """``cursor`` with the snapshot of ``chunk``, which is the first one from before it (:meth:`Cursor.before`).

    Raises: StateError if it carries none.
    """
    if chunk.error is not None:
        error = chunk.error
        raise no_exact(shard, cursor.count, f"{type(error).__name__}: {error}") from error
    if not chunk.items:
        raise no_exact(shard, cursor.count, "the shard ends before it when its items are made again")
    if chunk.notice is not None or chunk.snapshot is None:
        raise no_exact(shard, cursor.count, str(chunk.notice))
    return Cursor(chunk.snapshot, 0, cursor.count)


_LATER = "Take it a few items later, or save without exact=True"


def no_exact(shard: int, items: int, reason: str, way_out: str = _LATER) -> StateError:
    return StateError(f"there is no exact state of shard {shard} after item {items}: {reason}. {way_out}")
